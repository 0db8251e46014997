"""The BatchSizeManager on the wire: checks what comes in, feeds the jobs, answers when plans are made.

Everything that decides is in `job` and the policies; everything about bytes and deadlines is in `rpc`.
"""

import asyncio
import logging
import math
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import idl
from batchsize_manager.job import Job, JobConfig, Report
from batchsize_manager.plan import JobSpec
from batchsize_manager.policies import PolicyOptions, make_policy
from batchsize_manager.rounding import Bounds
from batchsize_manager.saved_models import models_file, save_models
from batchsize_manager.synchronisation import Synchronisation
from batchsize_manager.trainer import Trainer
from predictors import Models, Weights
from rpc import check
from rpc.errors import EvenpaceError, InvalidRequestError, NotMemberError, UnavailableError
from rpc.peer import Peer
from rpc.service import Call, Sink

log = logging.getLogger(__name__)

_wire = idl.batchsize_manager

_ENDED_JOBS = 10
_MAX_GRANULARITY = 2**48  # samples; all members' together fit into 64 bits


@dataclass(frozen=True)
class ManagerConfig:
    """How a manager balances.

    Attributes:
        policy: A name in `batchsize_manager.policies.POLICIES`.
        options: For the policy.
        job: How it runs its jobs.
        models: Folder in which each job's fitted models are kept; None for nowhere.
        jobs: How many jobs at once.
        members: How many workers in one job.
    """

    policy: str = "proportional"
    options: PolicyOptions = field(default_factory=lambda: PolicyOptions(tolerance=0.02))
    job: JobConfig = field(default_factory=JobConfig)
    models: Path | None = None
    jobs: int = 100
    members: int = 5000

    def __post_init__(self) -> None:
        make_policy(self.policy, self.options)  # raises ValueError


@dataclass(slots=True)
class _Waiting:
    call: Call
    since: float
    reported_iteration: int  # -1 for a join


@dataclass(slots=True)
class _Hosted:
    """A job, who waits for an answer in it, and through which connection each member speaks."""

    job: Job
    run: str
    said: int = 0  # events that have been logged
    answered_for: int = 0  # iterations that were planned when waiting calls were last answered
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    peers: dict[str, Peer] = field(default_factory=dict)


class ManagerService:
    """Serves `idl/batchsize_manager.thrift`; see `rpc.service.Service`."""

    definition = _wire.BatchSizeManager
    bulk_methods: frozenset[str] = frozenset()

    def __init__(self, config: ManagerConfig) -> None:
        self._config = config
        self._trainer = Trainer()
        self._jobs: dict[str, _Hosted] = {}
        self._saving: set[asyncio.Future[None]] = set()  # the loop itself would forget them
        self._ended: dict[str, _Hosted] = {}  # the last few, for those who ask how it went
        # connection to the (job, worker, incarnation) that speak through it
        self._speakers: dict[Peer, set[tuple[str, str, str]]] = {}
        self._handlers = {
            "join": self._join,
            "report": self._report,
            "leave": self._leave,
            "history": self._history,
        }

    # -- rpc.service.Service

    def handle(self, call: Call) -> None:
        """Take a call."""
        if call.request is None:
            raise InvalidRequestError(f"{call.method}: argument 1, request, is missing")
        self._handlers[call.method](call)

    def open_sink(self, call: Call, length: int) -> Sink:
        """No method here has a bulk field."""
        raise AssertionError(call.method)

    def disconnected(self, peer: Peer) -> None:
        """Members that spoke through this connection alone have a grace period to come back."""
        now = time.monotonic()
        for job_name, worker, incarnation in self._speakers.pop(peer, ()):
            hosted = self._jobs.get(job_name)
            if hosted is None or hosted.peers.get(worker) is not peer:
                continue
            hosted.waiting.pop(worker, None)
            hosted.job.disconnect(worker, incarnation, now)
            self._settle(job_name, hosted)

    def tick(self, now: float) -> None:
        """Let the jobs look at their deadlines."""
        for name, hosted in list(self._jobs.items()):
            hosted.job.tick(now)
            self._settle(name, hosted)

    def stop(self) -> None:
        """Refuse everybody who waits."""
        for hosted in self._jobs.values():
            for waiting in hosted.waiting.values():
                waiting.call.fail(UnavailableError("the manager is shutting down"))
            hosted.waiting.clear()
        self._trainer.close()

    # -- methods

    def _join(self, call: Call) -> None:
        request = call.request
        job_name, worker, incarnation = check.identity(request.identity)
        spec = _read(request.job, JobSpec)
        bounds = _read(request.bounds, Bounds)
        check.integer("granularity", bounds.granularity, 1, _MAX_GRANULARITY)
        hosted = self._jobs.get(job_name)
        if hosted is None:
            if len(self._jobs) >= self._config.jobs:
                raise UnavailableError(f"{len(self._jobs)} jobs are running; no more are allowed")
            policy = make_policy(self._config.policy, self._config.options)
            hosted = _Hosted(Job(spec, self._config.job, policy), uuid.uuid4().hex)
        elif hosted.job.spec != spec:
            raise InvalidRequestError(
                f"job {job_name!r} runs with {hosted.job.spec}, but {worker!r} wants {spec}"
            )
        if hosted.job.size >= self._config.members:
            raise UnavailableError(f"job {job_name!r} has {self._config.members} members already")
        hosted.job.join(worker, incarnation, bounds, time.monotonic())
        self._jobs[job_name] = hosted
        self._wait(job_name, hosted, call, worker, incarnation, -1)

    def _report(self, call: Call) -> None:
        request = call.request
        job_name, worker, incarnation = check.identity(request.identity)
        hosted = self._jobs.get(job_name)
        if hosted is None:
            raise NotMemberError(f"there is no job {job_name!r}; join first")
        report = Report(
            check.integer("iteration", request.iteration, 0),
            check.number("batch_processing_time", request.batch_processing_time, 0, math.inf),
            check.number("waiting_time", request.waiting_time, 0, math.inf),
            check.number("cpu_usage", request.cpu_usage, 0, 1),
            check.number("memory_usage", request.memory_usage, 0, 1),
        )
        hosted.job.report(worker, incarnation, report, time.monotonic())
        self._wait(job_name, hosted, call, worker, incarnation, report.iteration)

    def _leave(self, call: Call) -> None:
        job_name, worker, incarnation = check.identity(call.request.identity)
        hosted = self._jobs.get(job_name)
        if hosted is None:
            raise NotMemberError(f"there is no job {job_name!r}")
        hosted.job.leave(worker, incarnation, time.monotonic())
        hosted.waiting.pop(worker, None)
        self._speakers.get(call.peer, set()).discard((job_name, worker, incarnation))
        call.reply(_wire.LeaveReply(identity=call.request.identity))
        self._settle(job_name, hosted)

    def _history(self, call: Call) -> None:
        job_name = check.text("job", call.request.job)
        first = check.integer("first_iteration", call.request.first_iteration, 0)
        limit = check.integer("limit", call.request.limit, 1, 1000)
        hosted = self._jobs.get(job_name) or self._ended.get(job_name)
        if hosted is None:
            running = ", ".join(sorted(self._jobs)) or "none"
            raise InvalidRequestError(f"there is no job {job_name!r}; running: {running}")
        call.reply(
            _wire.History(
                members=hosted.job.members,
                iterations=[_record(r) for r in hosted.job.history(first, limit)],
                policy=self._config.policy,
                events=list(hosted.job.events),
                run=hosted.run,
            )
        )

    # -- answering

    def _wait(
        self,
        job_name: str,
        hosted: _Hosted,
        call: Call,
        worker: str,
        incarnation: str,
        reported_iteration: int,
    ) -> None:
        if hosted.peers.get(worker) is not call.peer or reported_iteration < 0:
            hosted.peers[worker] = call.peer
            self._speakers.setdefault(call.peer, set()).add((job_name, worker, incarnation))
        earlier = hosted.waiting.pop(worker, None)
        if earlier is not None:
            earlier.call.fail(UnavailableError("asked again since; that call will be answered"))
        waiting = _Waiting(call, time.monotonic(), reported_iteration)
        hosted.waiting[worker] = waiting
        asks_for_planned = reported_iteration < 0 or reported_iteration + 1 < hosted.job.planned
        if asks_for_planned and hosted.answered_for == hosted.job.planned:
            # Nothing new was planned, but this worker's next part may have been there before.
            self._answer(hosted, worker, waiting)
        self._settle(job_name, hosted)

    def _settle(self, job_name: str, hosted: _Hosted) -> None:
        """After an event: log what happened, answer who can be answered, end what has ended."""
        job = hosted.job
        if hosted.said != job.events_said:
            for event in list(job.events)[hosted.said - job.events_said :]:
                log.info("job %s: %s", job_name, event)
            hosted.said = job.events_said
        if job.failure:
            log.error("job %s cannot go on: %s", job_name, job.failure)
            self._end(job_name, hosted, InvalidRequestError(f"the job cannot go on: {job.failure}"))
        elif not job.size:
            log.info("job %s has ended: all members have gone", job_name)
            self._end(job_name, hosted, NotMemberError("the job has ended"))
        elif hosted.answered_for != job.planned:
            hosted.answered_for = job.planned
            for worker, waiting in list(hosted.waiting.items()):
                self._answer(hosted, worker, waiting)
            # Once the answers are out: whatever there is to learn can wait, the workers cannot.
            asyncio.get_running_loop().call_soon(self._train, job_name, hosted)

    def _answer(self, hosted: _Hosted, worker: str, waiting: _Waiting) -> None:
        identity = waiting.call.request.identity
        try:
            assignment = hosted.job.next_assignment(worker, identity.incarnation)
        except NotMemberError as error:
            del hosted.waiting[worker]
            waiting.call.fail(error)
            return
        if assignment is None:
            return
        del hosted.waiting[worker]
        joins = waiting.reported_iteration < 0
        lost = hosted.job.lost_since(max(0, waiting.reported_iteration))
        waiting.call.reply(
            _wire.AssignmentReply(
                identity=identity,
                reported_iteration=waiting.reported_iteration,
                assignment=idl.common.Assignment(
                    assignment.iteration,
                    assignment.epoch,
                    assignment.start,
                    assignment.count,
                    assignment.total,
                ),
                waited=time.monotonic() - waiting.since,
                lost=[_wire.Lost(s.iteration, s.start, s.count, s.total) for s in lost],
                run=hosted.run,
                synchronisation=_told(self._config.job.synchronisation) if joins else None,
            )
        )

    # -- learning

    def _train(self, job_name: str, hosted: _Hosted) -> None:
        """Have the job's policy learn what it wants to learn, in the trainer's process."""
        fit = hosted.job.due_fit()
        if fit is not None:
            self._trainer.submit(fit, lambda weights: self._take_fit(job_name, hosted, weights))

    def _take_fit(self, job_name: str, hosted: _Hosted, weights: Weights | None) -> None:
        hosted.job.take_fit(weights)
        if weights is None or self._config.models is None:
            return
        path = models_file(self._config.models, job_name)
        saving = asyncio.get_running_loop().run_in_executor(None, _save, path, hosted.job.models())
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    def _end(self, job_name: str, hosted: _Hosted, error: EvenpaceError) -> None:
        self._ended.pop(job_name, None)
        self._ended[job_name] = self._jobs.pop(job_name)
        while len(self._ended) > _ENDED_JOBS:
            del self._ended[next(iter(self._ended))]
        for waiting in hosted.waiting.values():
            waiting.call.fail(error)


def _read(struct: Any, into: type) -> Any:
    """A Thrift struct as the dataclass of ours that has the same fields and checks them."""
    values = {name: getattr(struct, name, None) for name in into.__dataclass_fields__}  # type: ignore[attr-defined]
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise InvalidRequestError(f"{into.__name__}: {missing[0]} is missing or not of its type")
    try:
        return into(**values)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


def _save(path: Path, models: Models) -> None:
    try:
        save_models(path, models)
    except OSError as error:
        log.warning("the fitted models cannot be kept: %s", error)


def _told(sync: Synchronisation) -> Any:
    """What a worker that joins is told: nothing in bsp, so that it need not know of modes."""
    if sync.mode == "bsp":
        return None
    return idl.common.Synchronisation(sync.mode, sync.staleness, sync.replicas_to_aggregate)


def _record(record: Any) -> Any:
    workers = [
        _wire.WorkerRecord(
            worker=name,
            batch_size=part.batch_size,
            batch_processing_time=part.batch_processing_time,
            waiting_time=part.waiting_time,
            cpu_usage=part.cpu_usage,
            memory_usage=part.memory_usage,
            predicted_speed=part.predicted_speed,
        )
        for name, part in record.workers.items()
    ]
    return _wire.IterationRecord(
        iteration=record.iteration,
        epoch=record.epoch,
        total=record.total,
        duration=record.duration,
        workers=workers,
    )
