"""The BatchSizeManager on the wire: feeds the jobs with what comes in, and ends them.

Everything that decides is in `job` and the policies; who is answered when is in `hosted`, what a manager that
is started anew finds again in `archive`, and everything about bytes and deadlines in `rpc`.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from importlib.metadata import version
from typing import Any

import idl
from batchsize_manager import control, status
from batchsize_manager.config import ManagerConfig
from batchsize_manager.counters import LearningTally
from batchsize_manager.hosted_job import HostedJob, Waiting
from batchsize_manager.job.effects import Effects
from batchsize_manager.job.job import Job
from batchsize_manager.learning.learning import Learning
from batchsize_manager.learning.saved_models import pack_models
from batchsize_manager.learning.uploads import LEARNED_BYTES, Upload, Uploads
from batchsize_manager.policies.model_registry import of_kinds
from batchsize_manager.storage.archive import Archive
from batchsize_manager.storage.state_format import StateError
from batchsize_manager.storage.state_writer import StateWriter
from idl import check
from idl.errors import EvenpaceError, InvalidRequestError, NotMemberError, UnavailableError
from idl.translation import read_bounds, read_report, read_resume, read_spec
from rpc.limited_log import LimitedLog
from rpc.peer import Peer
from rpc.service import Call, Discard, Sink
from rpc.tokens import ALL_JOBS

log = logging.getLogger(__name__)

_wire = idl.batchsize_manager

_ENDED_JOBS = 10
_LINES = 50  # of one level, per second, of log about jobs


class ManagerService:
    """Serves `idl/batchsize_manager.thrift`; see `rpc.service.Service`.

    Attributes:
        ended: How many jobs have.
        failed: Of them, those that could not go on.
        on_event: If set, called with a job and the effects of each of its events, before anybody is answered.

    Raises:
        StateError: The folder of its state cannot be used.
    """

    definition = _wire.BatchSizeManager
    bulk_methods = frozenset({"resume"})

    def __init__(self, config: ManagerConfig) -> None:
        self._config = config
        self._since = time.monotonic()
        self._tell = LimitedLog(log, _LINES, "%d more lines about jobs were left out")
        self._learning = Learning(config.policy, config.options, config.models)
        self._jobs: dict[str, HostedJob] = {}
        self._uploads = Uploads()
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself would forget them
        self.ended = self.failed = 0  # jobs; those that failed have ended, too
        self.on_event: Callable[[HostedJob, Effects], None] | None = None
        self._ended: dict[str, HostedJob] = {}  # the last few, for those who ask how it went
        self._given_up: dict[str, str] = {}  # by job, why it was not restored
        # connection to the (job, worker, incarnation) that speak through it
        self._speakers: dict[Peer, set[tuple[str, str, str]]] = {}
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
        self._archive: Archive | None = None
        if config.state is not None:
            self._archive = Archive(config.state, config.retention, self._learning, config.job, self._tell)
            try:
                restored, self._given_up = self._archive.restore()
            except BaseException:
                self._archive.close()
                raise
            self._jobs = {hosted.name: hosted for hosted in restored}
            for hosted in restored:
                self._note(hosted)

    # -- rpc.service.Service

    def handle(self, call: Call) -> None:
        """Take a call."""
        if call.request is None:
            raise InvalidRequestError(f"{call.method}: argument 1, request, is missing")
        check.wait(getattr(call.request, "wait", None))  # before anything has changed
        self._handlers[call.method](call)

    def open_sink(self, call: Call, length: int) -> Sink:
        """Where goes what a job had learned, if it is wanted."""
        identity = getattr(call.request, "identity", None)
        return Discard(length) if getattr(identity, "job", None) in self._jobs else self._uploads.open(length)

    def disconnected(self, peer: Peer) -> None:
        """Members that have no other connection have a grace period to come back."""
        now = time.monotonic()
        for job_name, worker, incarnation in self._speakers.pop(peer, ()):
            hosted = self._jobs.get(job_name)
            if hosted is not None:
                hosted.detach(worker, incarnation, peer, now)
                self._settle(hosted)

    def tick(self, now: float) -> None:
        """Let the jobs look at their deadlines."""
        self._tell.tick()
        notices = self._archive.notices() if self._archive is not None else []
        for hosted in list(self._jobs.values()):
            with hosted.sweeping:
                for notice in notices:
                    hosted.job.outbox.log(notice)
                hosted.job.tick(now)
                self._settle(hosted)
                hosted.send_away(now)

    def stop(self) -> None:
        """Refuse everybody who waits. Jobs that are remembered go on when the manager is started again."""
        for hosted in self._jobs.values():
            hosted.fail_all(UnavailableError("the manager is shutting down"))
        self._learning.close()
        if self._archive is not None:
            self._archive.close()

    # -- for metrics, from any thread

    @property
    def jobs(self) -> list[HostedJob]:
        """The jobs that have not ended."""
        return list(self._jobs.values())

    @property
    def learning(self) -> LearningTally:
        """Counts of what policies and fits have done."""
        return self._learning.tally

    @property
    def state_writer(self) -> StateWriter | None:
        """The writer of the jobs' state; None where it is not kept."""
        return self._archive.writer if self._archive is not None else None

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
        hosted = self._admit(call)
        identity = call.request.identity
        self._attach(hosted, identity.worker, identity.incarnation, call.peer)
        self._settle(hosted)
        reply = _wire.ResumeReply(identity=identity)
        self._once_kept(lambda: call.reply(reply))

    def _admit(self, call: Call) -> HostedJob:
        """Let a worker join; the job, which may be a new one."""
        request = call.request
        job_name, worker, incarnation = check.identity(request.identity)
        spec = read_spec(request.job)
        bounds = read_bounds(request.bounds)
        resume = read_resume(request.resume, spec.dataset_size)
        first = resume.iteration
        device = "" if request.device is None else check.text("device", request.device)
        if "/" in job_name or job_name == ALL_JOBS:  # a shard's jobs have one, and tokens have a "*" for all
            raise InvalidRequestError(f"job {job_name!r}: must not contain '/', and not be {ALL_JOBS!r}")
        hosted = self._jobs.get(job_name)
        if hosted is None:
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
            )
            hosted = HostedJob(
                job_name,
                uuid.uuid4().hex,
                job,
                self._config.job,
                self._learning.balancing,
                self._once_kept,
                self._tell,
            )
        elif hosted.job.spec != spec:
            raise InvalidRequestError(
                f"job {job_name!r} runs with {hosted.job.spec.differences(spec)}, but {worker!r} wants "
                f"{spec.differences(hosted.job.spec)}: give all its workers the same"
            )
        elif not hosted.job.members.started and first != hosted.job.first_iteration:
            raise InvalidRequestError(
                f"job {job_name!r} goes on from iteration {hosted.job.first_iteration}, but {worker!r} wants "
                f"to from {first}: give all workers the same checkpoint"
            )
        if len(hosted.job.members) >= self._config.members:
            raise UnavailableError(f"job {job_name!r} has {self._config.members} members already")
        hosted.job.join(
            worker,
            incarnation,
            bounds,
            time.monotonic(),
            unreleasable=bool(request.unreleasable),
            device=device,
            beats=bool(request.heartbeats),
        )
        self._jobs[job_name] = hosted
        self._given_up.pop(job_name, None)
        return hosted

    def _report(self, call: Call) -> None:
        hosted, worker, incarnation = self._caller(call)
        report = read_report(call.request)
        known = call.request.known
        known = -1 if known is None else check.integer("known", known, report.iteration)
        hosted.job.report(worker, incarnation, report, time.monotonic())
        self._wait(hosted, call, incarnation, report.iteration, known)

    def _heartbeat(self, call: Call) -> None:
        hosted, worker, incarnation = self._caller(call)
        attempt = check.integer("attempt", call.request.attempt, 0)
        recover = hosted.job.heartbeat(worker, incarnation, attempt, time.monotonic())
        self._attach(hosted, worker, incarnation, call.peer)
        self._settle(hosted)
        paused = hosted.job.operations.paused or None
        reply = _wire.HeartbeatReply(identity=call.request.identity, recover=recover, paused=paused)
        if recover is None:
            call.reply(reply)
        else:
            self._once_kept(lambda: call.reply(reply))

    def _recover(self, call: Call) -> None:
        hosted, worker, incarnation = self._caller(call)
        attempt = check.integer("attempt", call.request.attempt, 0)
        attempt = hosted.job.recover(worker, incarnation, attempt, time.monotonic())
        self._attach(hosted, worker, incarnation, call.peer)
        self._settle(hosted)
        reply = _wire.RecoverReply(identity=call.request.identity, attempt=attempt)
        self._once_kept(lambda: call.reply(reply))

    def _rewind(self, call: Call) -> None:
        hosted, worker, incarnation = self._caller(call)
        attempt = check.integer("attempt", call.request.attempt, 0)
        iteration = check.integer("iteration", call.request.iteration, 0)
        undecided = hosted.job.attempts.recovering
        hosted.job.rewind(worker, incarnation, attempt, iteration, time.monotonic())
        if self._archive is not None and undecided and not hosted.job.attempts.recovering:
            self._archive.rewound(hosted, iteration)
        self._wait(hosted, call, incarnation)

    def _checkpoint(self, call: Call) -> None:
        hosted, worker, incarnation = self._caller(call)
        hosted.job.members.known(worker, incarnation)  # raises if it is none
        models = hosted.job.planner.policy.models()
        learned = pack_models(models)
        if len(learned) > LEARNED_BYTES:
            said = "what %d bytes of job %s have learned is too much for a checkpoint, which has kinds alone"
            self._tell(logging.WARNING, said, len(learned), hosted.name, extra=hosted.log_fields)
            learned = pack_models(of_kinds(models))
        reply = _wire.CheckpointReply(
            identity=call.request.identity, learned=b"", total_batch_size=hosted.job.planner.batches.total
        )
        call.reply(reply, bulk=memoryview(learned))

    def _leave(self, call: Call) -> None:
        hosted, worker, incarnation = self._caller(call)
        hosted.job.leave(worker, incarnation, time.monotonic())
        hosted.waiting.pop(worker, None)
        for peer in hosted.connections.pop((worker, incarnation), ()):
            self._speakers.get(peer, set()).discard((hosted.name, worker, incarnation))
        call.reply(_wire.LeaveReply(identity=call.request.identity))
        self._settle(hosted)

    def _history(self, call: Call) -> None:
        name = check.text("job", call.request.job)
        first = check.integer("first_iteration", call.request.first_iteration, 0)
        limit = check.integer("limit", call.request.limit, 1, 1000)
        hosted = self._jobs.get(name) or self._ended.get(name)
        if self._archive is not None and (hosted is None or not hosted.remembers(first)):
            self._start(self._look_up(call, self._archive.history(name, hosted, first, limit)))
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
                jobs=[status.summary(hosted) for hosted in listed],
                version=version("evenpace"),
                uptime=time.monotonic() - self._since,
            )
        )

    def _status(self, call: Call) -> None:
        hosted = self._known(check.text("job", call.request.job))
        after = check.integer("events_after", call.request.events_after, -1)
        call.reply(status.status(hosted, after))

    def _control(self, call: Call) -> None:
        name = check.text("job", call.request.job)
        hosted = self._jobs.get(name)
        if hosted is None:
            ended = self._known(name).ending
            raise InvalidRequestError(f"job {name!r} cannot be changed any more: {ended}")
        said = control.apply(hosted, call.request, self._learning, time.monotonic())
        self._settle(hosted)
        self._once_kept(lambda: call.reply(_wire.ControlReply(said=said)))

    async def _look_up(self, call: Call, past: Coroutine[Any, Any, Any]) -> None:
        try:
            answer = await past
        except StateError as error:
            call.fail(UnavailableError(f"the past cannot be read: {error}"))
            return
        if answer is None:
            call.fail(self._no_such_job(call.request.job))
        else:
            call.reply(answer)

    def _known(self, name: str) -> HostedJob:
        """A job that runs, or is one of the last that have ended.

        Raises:
            InvalidRequestError: There is none.
        """
        hosted = self._jobs.get(name) or self._ended.get(name)
        if hosted is None:
            raise self._no_such_job(name)
        return hosted

    def _no_such_job(self, name: str) -> InvalidRequestError:
        return InvalidRequestError(f"there is no job {name!r}")  # others' names are not for everybody

    # -- what follows

    def _caller(self, call: Call) -> tuple[HostedJob, str, str]:
        """The job that a call is about, the worker and its incarnation.

        Raises:
            NotMemberError: There is no such job.
        """
        name, worker, incarnation = check.identity(call.request.identity)
        hosted = self._jobs.get(name)
        if hosted is None:
            raise NotMemberError(f"there is no job {name!r}: {self._given_up.get(name, 'join first')}")
        return hosted, worker, incarnation

    def _attach(self, hosted: HostedJob, worker: str, incarnation: str, peer: Peer) -> None:
        """Note that a member speaks through a connection."""
        connections = hosted.connections.setdefault((worker, incarnation), set())
        if peer not in connections:
            connections.add(peer)
            self._speakers.setdefault(peer, set()).add((hosted.name, worker, incarnation))

    def _wait(
        self, hosted: HostedJob, call: Call, incarnation: str, reported_iteration: int = -1, known: int = -1
    ) -> None:
        worker = call.request.identity.worker
        until = call.since + check.wait(call.request.wait)
        self._attach(hosted, worker, incarnation, call.peer)
        hosted.wait(worker, Waiting(call, until, reported_iteration, known))
        self._settle(hosted, worker)

    def _settle(self, hosted: HostedJob, asker: str | None = None) -> None:
        """After an event: tell and remember what happened, answer who can be answered, end what has ended."""
        job = hosted.job
        effects = self._note(hosted)
        if self.on_event is not None:
            self.on_event(hosted, effects)
        if hosted.deserted != (deserted := not job.members):
            hosted.deserted = deserted
            if deserted:
                self._learnt(hosted)  # it may be kept for long, or not come to an end
        if failure := job.attempts.failure:
            self._tell(
                logging.ERROR, "job %s cannot go on: %s", hosted.name, failure, extra=hosted.log_fields
            )
            why = f"the job cannot go on: {failure}"
            self._end(hosted, why, InvalidRequestError(why))
        elif job.ended:
            self._tell(
                logging.INFO,
                "job %s has ended: all members have gone",
                hosted.name,
                extra=hosted.log_fields,
            )
            self._end(hosted, "all members have gone", NotMemberError("the job has ended"))
        elif effects.answer:
            hosted.answer_all()
        elif asker is not None:
            hosted.answer(asker)  # nothing is new, but this worker's next part may have been there before
        if effects.fit:  # once the answers are out: a fit can wait, the workers cannot
            asyncio.get_running_loop().call_soon(
                self._learning.train, job, partial(self._learnt, hosted), hosted.name
            )

    def _note(self, hosted: HostedJob) -> Effects:
        """Log and keep what a job's last event has brought, and return all of its effects."""
        effects = hosted.job.take_effects()
        if self._archive is not None:
            self._archive.keep(hosted, effects)
        hosted.log_events(effects)
        return effects

    def _end(self, hosted: HostedJob, why: str, error: EvenpaceError) -> None:
        if not hosted.deserted:
            self._learnt(hosted)
        if self._archive is not None:
            self._archive.ended(hosted, why)
        del self._jobs[hosted.name]
        self.ended += 1
        self.failed += hosted.job.attempts.failure is not None
        hosted.ending = why
        self._ended.pop(hosted.name, None)
        self._ended[hosted.name] = hosted
        while len(self._ended) > _ENDED_JOBS:
            del self._ended[next(iter(self._ended))]
        hosted.fail_all(error)

    def _learnt(self, hosted: HostedJob) -> None:
        """A job has learnt something that is worth keeping."""
        self._learning.save(hosted.name, hosted.job)
        if self._archive is not None:
            self._archive.learnt(hosted)

    def _once_kept(self, function: Callable[[], None]) -> None:
        if self._archive is None:
            function()
        else:
            self._archive.once_kept(function)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _learned(call: Call) -> bytes:
    """What came with a call for a new job.

    Raises:
        UnavailableError: It was not kept.
    """
    if isinstance(call.sink, Discard):
        raise UnavailableError("the job has ended since; try again")
    return call.sink.take() if isinstance(call.sink, Upload) else b""
