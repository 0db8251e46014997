"""The BatchSizeManager on the wire: gives calls to the jobs as events, carries out their effects.

Decisions are made in `job` and the policies, answers to waiting calls in `managed_job`. Jobs of an earlier
manager come from `restart`, bytes and deadlines are in `rpc`.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import idl
from batchsize_manager import control, status
from batchsize_manager.config import ManagerConfig
from batchsize_manager.counters import LearningTally
from batchsize_manager.job.effects import Effects, Over
from batchsize_manager.job.job import Job
from batchsize_manager.learning.learning import Learning
from batchsize_manager.learning.saved_models import pack_models
from batchsize_manager.learning.uploads import LEARNED_BYTES, Upload, Uploads
from batchsize_manager.managed_job import Held, ManagedJob, Waiting
from batchsize_manager.policies.model_registry import of_kinds
from batchsize_manager.restart import restore_jobs
from batchsize_manager.storage.past import join_records, read_past
from batchsize_manager.storage.state_format import StateError
from batchsize_manager.storage.state_writer import StateWriter
from idl import check
from idl.endings import FINISHED
from idl.errors import CANNOT_GO_ON, EvenpaceError, InvalidRequestError, NotMemberError, UnavailableError
from idl.translation import read_bounds, read_exchange, read_place, read_report, read_resume, read_spec
from idl.version import __version__
from rpc.limited_log import LimitedLog
from rpc.service import Call, Connection, Discard, Sink
from rpc.tokens import ALL_JOBS

log = logging.getLogger(__name__)

_wire = idl.batchsize_manager

_ENDED_JOBS = 10
_LINES = 50  # of one level, per second, of log about jobs


class ManagerService:
    """The service of `idl/batchsize_manager.thrift`; see `rpc.service.Service`.

    Attributes:
        ended: Number of jobs that have ended.
        failed: Number of these that could not go on.
        on_event: If set, called with a job and the effects of each of its events, before calls are answered.

    Raises:
        StateError: The folder of its state cannot be used.
    """

    definition = _wire.BatchSizeManager
    bulk_methods = frozenset({"resume"})

    def __init__(self, config: ManagerConfig) -> None:
        self._config = config
        self._since = time.monotonic()
        self._limited_log = LimitedLog(log, _LINES, "%d more lines about jobs were left out")
        self._learning = Learning(config.policy, config.options, config.models)
        self._jobs: dict[str, ManagedJob] = {}
        self._uploads = Uploads()
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself would forget them
        self.ended = self.failed = 0  # jobs; those that failed have ended, too
        self.on_event: Callable[[ManagedJob, Effects], None] | None = None
        self._ended: dict[str, ManagedJob] = {}  # the last few, for clients that look at them
        self._given_up: dict[str, str] = {}  # by job, why it was not restored
        # connection to the (job, worker, incarnation) that speak through it
        self._speakers: dict[Connection, dict[tuple[str, str, str], None]] = {}
        self._handlers = {
            "join": self._join,
            "resume": self._resume,
            "report": self._report,
            "heartbeat": self._heartbeat,
            "recover": self._recover,
            "rewind": self._rewind,
            "checkpoint": self._checkpoint,
            "leave": self._leave,
            "history": self._history,
            "jobs": self._list_jobs,
            "status": self._status,
            "control": self._control,
        }
        self._writer: StateWriter | None = None
        if config.state is not None:
            self._writer = StateWriter(config.state, config.retention)
            try:
                restored, self._given_up = restore_jobs(
                    self._writer, self._learning, config.job, self._limited_log
                )
            except BaseException:
                self._writer.close()
                raise
            self._jobs = {managed.name: managed for managed in restored}

    # -- rpc.service.Service

    def handle(self, call: Call) -> None:
        """Handle a call; its answer may be sent later."""
        if call.request is None:
            raise InvalidRequestError(f"{call.method}: argument 1, request, is missing")
        check.wait(getattr(call.request, "wait", None))  # before anything has changed
        self._handlers[call.method](call)

    def open_sink(self, call: Call, length: int) -> Sink:
        """Return the sink for a resumed job's models, if they are wanted."""
        identity = getattr(call.request, "identity", None)
        return Discard(length) if getattr(identity, "job", None) in self._jobs else self._uploads.open(length)

    def disconnected(self, peer: Connection) -> None:
        """Give members that have no other connection a grace period to come back."""
        now = time.monotonic()
        for job_name, worker, incarnation in self._speakers.pop(peer, ()):
            managed = self._jobs.get(job_name)
            if managed is not None:
                managed.detach(worker, incarnation, peer, now)
                self._carry_out(managed)

    def tick(self, now: float) -> None:
        """Let the jobs check their deadlines, and answer calls that have waited long enough."""
        self._limited_log.tick()
        notices = self._writer.notices() if self._writer is not None else []
        for managed in list(self._jobs.values()):
            with managed.sweeping:
                for notice in notices:
                    managed.job.outbox.log(notice)
                managed.job.tick(now)
                self._carry_out(managed)
                managed.expire(now)

    def stop(self) -> None:
        """Refuse all calls that wait. Jobs in the state go on when the manager is started again."""
        for managed in self._jobs.values():
            managed.fail_all(UnavailableError("the manager is shutting down"))
        self._learning.close()
        if self._writer is not None:
            self._writer.close()

    # -- for metrics, from any thread

    @property
    def jobs(self) -> list[ManagedJob]:
        """The jobs that have not ended."""
        return list(self._jobs.values())

    @property
    def learning(self) -> LearningTally:
        """Counts of what policies and fits have done."""
        return self._learning.tally

    @property
    def state_writer(self) -> StateWriter | None:
        """The writer of the jobs' state; None where it is not kept."""
        return self._writer

    # -- methods

    def _join(self, call: Call) -> None:
        identity, resume = call.request.identity, call.request.resume
        check.identity(identity)
        wanted = resume is not None and resume.learned_bytes is not None and identity.job not in self._jobs
        if wanted and check.integer("resume.learned_bytes", resume.learned_bytes, 0):
            reply = _wire.AssignmentReply(identity=identity, reported_iteration=-1, waited=0.0, lost=[])
            reply.run, reply.resume = "", True
            call.reply(reply)
        else:
            self._wait(self._admit(call), call, identity.incarnation)

    def _resume(self, call: Call) -> None:
        managed = self._admit(call)
        identity = call.request.identity
        self._attach(managed, identity.worker, identity.incarnation, call.peer)
        self._carry_out(managed)
        reply = _wire.ResumeReply(identity=identity)
        managed.once_kept(lambda: call.reply(reply))

    def _admit(self, call: Call) -> ManagedJob:
        """Let a worker join; return the job, which may be a new one. It logs who was refused, and why."""
        identity = call.request.identity
        try:
            return self._let_join(call)
        except InvalidRequestError as error:
            managed = self._jobs.get(identity.job) if identity is not None else None
            if managed is not None and type(identity.worker) is str and identity.worker:
                managed.job.refuse(check.text("worker", identity.worker), str(error))
                self._carry_out(managed)
            raise

    def _let_join(self, call: Call) -> ManagedJob:
        request = call.request
        job_name, worker, incarnation = check.identity(request.identity)
        spec = read_spec(request.job)
        bounds = read_bounds(request.bounds)
        resume = read_resume(request.resume, spec.dataset_size)
        first = resume.iteration
        device = "" if request.device is None else check.text("device", request.device)
        exchange = read_exchange(request.exchange)
        threads = None if request.threads is None else check.integer("threads", request.threads, 1)
        if "/" in job_name or job_name == ALL_JOBS:  # a shard's jobs have one, and tokens have a "*" for all
            raise InvalidRequestError(f"job {job_name!r}: must not contain '/', and not be {ALL_JOBS!r}")
        if self._config.job.synchronisation.exact and spec.micro_batch is None:
            raise InvalidRequestError(
                f"job {job_name!r} has no micro-batches, which exact sums are made of: give micro_batch= to "
                f"its loader, or start the manager without --exact"
            )
        managed = self._jobs.get(job_name)
        if request.run is not None and (managed is None or managed.run != request.run):
            raise self._no_job(job_name, request.run)
        if managed is None:
            if len(self._jobs) >= self._config.jobs:
                raise UnavailableError(f"{len(self._jobs)} jobs are running; no more are allowed")
            policy = self._learning.make_policy(_learned(call))
            job = Job(
                spec,
                self._config.job,
                policy,
                first,
                position=resume.position,
                total=resume.total_batch_size,
                progress=resume.progress,
            )
            managed = ManagedJob(
                job_name,
                uuid.uuid4().hex,
                job,
                self._learning.balancing,
                self._writer,
                self._limited_log,
            )
        elif managed.job.spec != spec:
            raise InvalidRequestError(
                f"job {job_name!r} runs with {managed.job.spec.differences(spec)}, but {worker!r} wants "
                f"{spec.differences(managed.job.spec)}: give all its workers the same"
            )
        elif not managed.job.spec.has_samples_of(spec):
            raise InvalidRequestError(
                f"{worker!r} has other samples in its data set than those of job {job_name!r}, though as "
                f"many: split and shuffle with a seed that is the same on all workers, and number labels "
                f"from a sorted list; where samples are to differ, give the loader compare_samples=False"
            )
        elif not managed.job.members.started and first != managed.job.first_iteration:
            raise InvalidRequestError(
                f"job {job_name!r} goes on from iteration {managed.job.first_iteration}, but {worker!r} "
                f"wants to from {first}: give all workers the same checkpoint"
            )
        if len(managed.job.members) >= self._config.members:
            raise UnavailableError(f"job {job_name!r} has {self._config.members} members already")
        managed.job.join(
            worker,
            incarnation,
            bounds,
            time.monotonic(),
            exchange=exchange,
            device=device,
            threads=threads,
            beats=bool(request.heartbeats),
            again=request.run is not None,
        )
        self._jobs[job_name] = managed
        self._given_up.pop(job_name, None)
        return managed

    def _report(self, call: Call) -> None:
        managed, worker, incarnation = self._caller(call)
        report = read_report(call.request)
        known = call.request.known
        known = -1 if known is None else check.integer("known", known, report.iteration)
        managed.job.report(worker, incarnation, report, time.monotonic())
        self._wait(managed, call, incarnation, report.iteration, known)

    def _heartbeat(self, call: Call) -> None:
        managed, worker, incarnation = self._caller(call)
        attempt = check.integer("attempt", call.request.attempt, 0)
        hold, known = call.request.hold, call.request.known
        hold = 0.0 if hold is None else check.number("hold", hold, 0.0, check.LONGEST_WAIT)
        known = None if known is None else check.integer("known", known, 0)
        recover = managed.job.heartbeat(
            worker, incarnation, attempt, time.monotonic(), between=bool(call.request.between)
        )
        self._attach(managed, worker, incarnation, call.peer)
        self._carry_out(managed)
        if hold and recover in (None, known):
            managed.hold(worker, Held(call, call.since + hold, known))
        else:
            managed.answer_heartbeat(call, recover)

    def _recover(self, call: Call) -> None:
        managed, worker, incarnation = self._caller(call)
        attempt = check.integer("attempt", call.request.attempt, 0)
        attempt = managed.job.recover(worker, incarnation, attempt, time.monotonic())
        self._attach(managed, worker, incarnation, call.peer)
        self._carry_out(managed)
        manager = managed.job.attempts.manager
        reply = _wire.RecoverReply(identity=call.request.identity, attempt=attempt, manager=manager)
        managed.once_kept(lambda: call.reply(reply))

    def _rewind(self, call: Call) -> None:
        managed, worker, incarnation = self._caller(call)
        attempt = check.integer("attempt", call.request.attempt, 0)
        iteration = check.integer("iteration", call.request.iteration, 0)
        place = read_place(call.request.place)
        store = None if call.request.store is None else check.text("store", call.request.store)
        formed = None if call.request.formed is None else check.integer("formed", call.request.formed, 0)
        by = None if call.request.formed_by is None else check.text("formed_by", call.request.formed_by)
        managed.job.rewind(
            worker,
            incarnation,
            attempt,
            iteration,
            time.monotonic(),
            place,
            store=store,
            formed=formed,
            formed_by=by,
            kept=bool(call.request.kept),
        )
        self._wait(managed, call, incarnation)

    def _checkpoint(self, call: Call) -> None:
        managed, worker, incarnation = self._caller(call)
        managed.job.members.known(worker, incarnation)  # raises if it is none
        models = managed.job.planner.policy.models()
        learned = pack_models(models)
        if len(learned) > LEARNED_BYTES:
            said = "what %d bytes of job %s have learned is too much for a checkpoint, which has kinds alone"
            self._limited_log(logging.WARNING, said, len(learned), managed.name, extra=managed.log_fields)
            learned = pack_models(of_kinds(models))
        reply = _wire.CheckpointReply(
            identity=call.request.identity, learned=b"", total_batch_size=managed.job.planner.batches.total
        )
        call.reply(reply, memoryview(learned))

    def _leave(self, call: Call) -> None:
        managed, worker, incarnation = self._caller(call)
        managed.job.leave(worker, incarnation, time.monotonic(), failed=bool(call.request.failed))
        managed.waiting.pop(worker, None)
        managed.held.pop(worker, None)
        for peer in managed.connections.pop((worker, incarnation), ()):
            self._speakers.get(peer, {}).pop((managed.name, worker, incarnation), None)
        self._carry_out(managed)
        managed.once_kept(
            lambda: call.reply(
                _wire.LeaveReply(
                    identity=call.request.identity,
                    unwritten=(self._writer is not None and self._writer.is_behind) or None,
                )
            )
        )

    def _history(self, call: Call) -> None:
        name = check.text("job", call.request.job)
        first = check.integer("first_iteration", call.request.first_iteration, 0)
        limit = check.integer("limit", call.request.limit, 1, 1000)
        managed = self._jobs.get(name) or self._ended.get(name)
        if self._writer is not None and (managed is None or not managed.remembers(first)):
            self._start(self._look_up(call, self._writer, managed, first, limit))
        else:
            known = self._known(name)
            call.reply(status.history(known.run, known.job.history(first, limit)))

    def _list_jobs(self, call: Call) -> None:
        name = call.request.job
        if name is None:
            listed = [*self._jobs.values(), *reversed(self._ended.values())]
        else:
            listed = [self._known(check.text("job", name))]
        call.reply(
            _wire.JobsReply(
                jobs=[status.summary(managed) for managed in listed],
                version=__version__,
                uptime=time.monotonic() - self._since,
            )
        )

    def _status(self, call: Call) -> None:
        managed = self._known(check.text("job", call.request.job))
        after = check.integer("events_after", call.request.events_after, -1)
        call.reply(status.status(managed, after))

    def _control(self, call: Call) -> None:
        name = check.text("job", call.request.job)
        managed = self._jobs.get(name)
        if managed is None:
            ended = self._known(name).ending
            raise InvalidRequestError(f"job {name!r} cannot be changed any more: {ended}")
        said = control.apply(managed, call.request, self._learning, time.monotonic())
        self._carry_out(managed)
        managed.once_kept(lambda: call.reply(_wire.ControlReply(said=said)))

    async def _look_up(
        self, call: Call, writer: StateWriter, managed: ManagedJob | None, first: int, limit: int
    ) -> None:
        name = call.request.job
        try:
            past = await read_past(writer, name, managed.run if managed is not None else None, first, limit)
        except StateError as error:
            call.fail(UnavailableError(f"the past cannot be read: {error}"))
            return
        if managed is not None:
            records = join_records(past[1] if past is not None else [], managed.job.history(first, limit))
            past = managed.run, records[:limit]
        if past is None:
            call.fail(self._no_such_job(name))
        else:
            call.reply(status.history(*past))

    def _known(self, name: str) -> ManagedJob:
        """Return a job that runs, or is one of the last that have ended.

        Raises:
            InvalidRequestError: There is no such job.
        """
        managed = self._jobs.get(name) or self._ended.get(name)
        if managed is None:
            raise self._no_such_job(name)
        return managed

    def _no_such_job(self, name: str) -> InvalidRequestError:
        return InvalidRequestError(f"there is no job {name!r}")  # others' names are not for everybody

    # -- what follows

    def _caller(self, call: Call) -> tuple[ManagedJob, str, str]:
        """Return the job that a call is about, the worker and its incarnation.

        Raises:
            NotMemberError: There is no such job.
        """
        name, worker, incarnation = check.identity(call.request.identity)
        managed = self._jobs.get(name)
        if managed is None:
            raise self._no_job(name)
        return managed, worker, incarnation

    def _no_job(self, name: str, run: str | None = None) -> NotMemberError:
        """Return the error of a call about a job that does not run, by a member of `run` if that is given."""
        ended = self._ended.get(name)
        failure = ended.ending if ended is not None and ended.job.attempts.failure else ""
        is_well = ended is not None and ended.run == run and ended.ending == FINISHED
        return NotMemberError(
            f"there is no job {name!r}: {self._given_up.get(name) or failure or 'join first'}",
            FINISHED if is_well else None,
        )

    def _attach(self, managed: ManagedJob, worker: str, incarnation: str, peer: Connection) -> None:
        """Note that a member calls through a connection."""
        connections = managed.connections.setdefault((worker, incarnation), set())
        if peer not in connections:
            connections.add(peer)
            self._speakers.setdefault(peer, {})[managed.name, worker, incarnation] = None

    def _wait(
        self, managed: ManagedJob, call: Call, incarnation: str, reported_iteration: int = -1, known: int = -1
    ) -> None:
        worker = call.request.identity.worker
        until = call.since + check.wait(call.request.wait)
        self._attach(managed, worker, incarnation, call.peer)
        managed.wait(worker, Waiting(call, until, reported_iteration, known))
        self._carry_out(managed, worker)

    def _carry_out(self, managed: ManagedJob, asker: str | None = None) -> None:
        """Carry out the effects of a job's last event.

        Args:
            asker: The worker whose call it was, if that waits for an answer.
        """
        effects = managed.job.take_effects()
        if effects:  # most reports have none
            managed.note(effects)
        if self.on_event is not None:
            self.on_event(managed, effects)
        if effects.learned:
            self._learned(managed)
        if effects.over is not None:
            managed.log_events(effects)
            self._end(managed, effects.over)
            return
        if effects.answer:
            managed.answer_all()
        elif asker is not None:
            managed.answer(asker)  # nothing is new, but this worker's next part may have been there before
        managed.hand_over()
        if effects.log:  # after the answers have gone: lines can wait, the workers cannot
            asyncio.get_running_loop().call_soon(managed.log_events, effects)
        if effects.fit:  # after the answers: a fit can wait, the workers cannot
            asyncio.get_running_loop().call_soon(
                self._learning.train, managed.job, partial(self._learned, managed), managed.name
            )

    def _end(self, managed: ManagedJob, over: Over) -> None:
        """Remove a job that is over; clients can still look at the last few."""
        about = managed.log_fields
        error: EvenpaceError
        if over.failed:
            managed.ending = f"{CANNOT_GO_ON}: {over.why}"
            error = InvalidRequestError(managed.ending)
            self._limited_log(logging.ERROR, "job %s cannot go on: %s", managed.name, over.why, extra=about)
        else:
            managed.ending, error = over.why, NotMemberError("the job has ended")
            self._limited_log(logging.INFO, "job %s has ended: %s", managed.name, over.why, extra=about)
        managed.keep_end()
        del self._jobs[managed.name]
        self.ended += 1
        self.failed += over.failed
        self._ended.pop(managed.name, None)
        self._ended[managed.name] = managed
        while len(self._ended) > _ENDED_JOBS:
            del self._ended[next(iter(self._ended))]
        managed.fail_all(error)

    def _learned(self, managed: ManagedJob) -> None:
        """Keep the models of a job."""
        self._learning.save(managed.name, managed.job)
        managed.keep_models()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _learned(call: Call) -> bytes:
    """Return the bytes of the models that came with a call for a new job; empty without any.

    Raises:
        UnavailableError: The bytes were dropped: there was no room for them, or the job had begun when they
            came, and has ended since.
    """
    if isinstance(call.sink, Discard):
        raise UnavailableError("the job has ended since; try again")
    return call.sink.take() if isinstance(call.sink, Upload) else b""
