"""A job as a state machine: who is in it, who has reported, and what everybody does next.

Events come in through `join`, `report`, `leave`, `disconnect` and `tick`, each with its time; what
follows from them is read from `assignment_after`, `lost_since`, `history` and `failure`. No sockets,
no threads, and no clock of its own, so that it can be tested and replayed event by event.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from batchsize_manager.plan import Assignment, JobSpec, Plan, make_plan
from batchsize_manager.policies import Member, Observation, Policy
from batchsize_manager.rounding import Bounds, InfeasibleError
from predictors import Fit, Models, Weights
from rpc.errors import InvalidRequestError, NotMemberError

_HISTORY_RECORDS = 200_000  # workers times iterations; the oldest go first
_EVENTS = 200
_SHORTEST = 1e-9  # seconds; a batch processing time below that is a broken clock's


@dataclass(frozen=True)
class JobConfig:
    """How a manager runs its jobs.

    Attributes:
        workers: The job starts when so many have joined.
        lookahead: Iterations that are planned ahead of the reports; 0 is the paper's blocking mode.
        report_timeout: Seconds that others wait for a member's report before the member is taken out.
        reconnect_grace: Seconds in which a member whose connection broke may come back.

    Raises:
        ValueError: A number is out of its range.
    """

    workers: int = 1
    lookahead: int = 0
    report_timeout: float = 120.0
    reconnect_grace: float = 1.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers {self.workers}: must be at least 1")
        if self.lookahead < 0:
            raise ValueError(f"lookahead {self.lookahead}: must be at least 0")
        if not 0 < self.report_timeout < float("inf"):
            raise ValueError(f"report_timeout {self.report_timeout}: must be above 0 s")
        if not 0 <= self.reconnect_grace < float("inf"):
            raise ValueError(f"reconnect_grace {self.reconnect_grace}: must be at least 0 s")


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says at the end of an iteration; see `ReportRequest` in the IDL."""

    iteration: int
    batch_processing_time: float  # seconds
    waiting_time: float = 0.0  # seconds, in the parameter server
    cpu_usage: float = 0.0
    memory_usage: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker's part in a finished iteration; times in seconds, speeds in samples per second."""

    batch_size: int
    batch_processing_time: float
    waiting_time: float
    cpu_usage: float
    memory_usage: float
    predicted_speed: float | None


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """A finished iteration."""

    iteration: int
    epoch: int
    total: int
    duration: float  # seconds, from when it could start until the last report
    workers: Mapping[str, WorkerRecord]


@dataclass(slots=True)
class _Membership:
    incarnation: str
    bounds: Bounds
    joined_at: float
    first: int  # the first iteration that it may be planned into
    reported: int  # the last iteration that it has reported
    disconnected_at: float | None = None


@dataclass(slots=True)
class _Progress:
    """An iteration that is planned and not yet complete."""

    plan: Plan
    released_at: float
    predicted_speeds: Mapping[str, float]
    delivered: bool = False
    reports: dict[str, tuple[Report, float]] = field(default_factory=dict)  # with arrival times
    lost: set[str] = field(default_factory=set)  # workers that have gone without a report


class Job:
    """One training job. Times are in seconds on any one monotonic clock.

    Args:
        spec: What is trained on.
        config: How the job is run.
        policy: How batches are split.

    Attributes:
        failure: Why the job cannot go on, or None.
        started: Whether all workers have joined once.
        events: The last things that happened, in words; of `events_said` in all.
    """

    def __init__(self, spec: JobSpec, config: JobConfig, policy: Policy) -> None:
        self.spec = spec
        self.failure: str | None = None
        self.started = False
        self._config = config
        self._policy = policy
        self._members: dict[str, _Membership] = {}
        self._progress: dict[int, _Progress] = {}  # by iteration, ascending
        self._next_iteration = 0  # the first that is not planned
        self._history: deque[IterationRecord] = deque()
        self._history_records = 0
        self.events: deque[str] = deque(maxlen=_EVENTS)
        self.events_said = 0
        self._last_warning: tuple[str, ...] = ()

    # -- events

    def join(self, worker: str, incarnation: str, bounds: Bounds, now: float) -> None:
        """A worker wants to take part; the same incarnation may say so again.

        Raises:
            InvalidRequestError: Its name is taken, or its minimum does not fit into the batch.
        """
        member = self._members.get(worker)
        if member is not None and member.incarnation == incarnation:
            member.disconnected_at = None
            return
        if member is not None:
            if member.disconnected_at is None:
                raise InvalidRequestError(
                    f"worker {worker!r} is a member already, as incarnation {member.incarnation}; "
                    f"give each worker a name of its own"
                )
            self._remove(worker, "gave its name to a new incarnation", now)
        minima = bounds.minimum + sum(m.bounds.minimum for m in self._members.values())
        if minima > self.spec.total_batch_size:
            raise InvalidRequestError(
                f"with {worker!r} the workers' minimum batch sizes sum to {minima}, "
                f"more than the total batch size, {self.spec.total_batch_size}"
            )
        self._discard_undelivered()
        first = self._next_iteration
        self._members[worker] = _Membership(incarnation, bounds, now, first, first - 1)
        self._say(f"{worker} joined, for iteration {first} on")
        self._members_changed()
        self._advance(now)

    def report(self, worker: str, incarnation: str, report: Report, now: float) -> None:
        """A worker has finished an iteration; the same report may come again.

        Raises:
            NotMemberError: The worker is no member.
            InvalidRequestError: It was not this iteration's turn.
        """
        member = self.member(worker, incarnation)
        member.disconnected_at = None
        if report.iteration <= member.reported and report.iteration >= member.first:
            return
        progress = self._progress.get(report.iteration)
        if report.iteration != member.reported + 1 or progress is None:
            raise InvalidRequestError(
                f"report of iteration {report.iteration}, but {member.reported + 1} is next for {worker!r}"
            )
        assignment = progress.plan.assignments[worker]
        if assignment.count and report.batch_processing_time < _SHORTEST:
            raise InvalidRequestError(
                f"batch_processing_time {report.batch_processing_time} for {assignment.count} samples: "
                f"must be at least {_SHORTEST} s"
            )
        member.reported = report.iteration
        progress.reports[worker] = (report, now)
        if len(progress.reports) + len(progress.lost) == len(progress.plan.assignments):
            self._advance(now)

    def leave(self, worker: str, incarnation: str, now: float) -> None:
        """A worker takes no further part.

        Raises:
            NotMemberError: It is no member.
        """
        self.member(worker, incarnation)
        self._remove(worker, "left", now)

    def disconnect(self, worker: str, incarnation: str, now: float) -> None:
        """A worker's connection broke; unless it comes back within the grace period, it has died."""
        member = self._members.get(worker)
        if member is not None and member.incarnation == incarnation:
            member.disconnected_at = now

    def tick(self, now: float) -> None:
        """Time has passed: take out who did not come back, or lets the others wait for too long."""
        for worker, member in list(self._members.items()):
            gone = member.disconnected_at
            if gone is not None and now - gone >= self._config.reconnect_grace:
                self._remove(worker, "died: its connection broke", now)
        for progress in list(self._progress.values()):
            waiting_since = [at for worker, (_, at) in progress.reports.items() if worker in self._members]
            waiting_since += [
                m.joined_at for m in self._members.values() if m.first > progress.plan.iteration
            ]
            if not waiting_since or now - min(waiting_since) < self._config.report_timeout:
                continue
            for worker in progress.plan.assignments:
                if worker not in progress.reports and worker not in progress.lost:
                    text = f"did not report iteration {progress.plan.iteration} in time"
                    self._remove(worker, text, now)

    # -- what follows from them

    @property
    def members(self) -> list[str]:
        """The members' names, in the order of their slices."""
        return list(self._members)

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self._members)

    @property
    def planned(self) -> int:
        """How many iterations are planned."""
        return self._next_iteration

    def member(self, worker: str, incarnation: str) -> _Membership:
        """A member's state.

        Raises:
            NotMemberError: There is no such member, or it is another incarnation.
        """
        member = self._members.get(worker)
        if member is None or member.incarnation != incarnation:
            raise NotMemberError(
                f"worker {worker!r}, incarnation {incarnation!r}, is not a member: it never joined, left, "
                f"or was taken out ({'; '.join(e for e in self.events if e.startswith(worker)) or '-'})"
            )
        return member

    def next_assignment(self, worker: str, incarnation: str) -> Assignment | None:
        """What a member does after the last iteration it reported; None while that is not planned.

        Raises:
            NotMemberError: It is no member.
        """
        member = self.member(worker, incarnation)
        progress = self._progress.get(member.reported + 1)
        if progress is None or worker not in progress.plan.assignments:
            return None
        progress.delivered = True
        return progress.plan.assignments[worker]

    def lost_since(self, iteration: int) -> Iterator[Assignment]:
        """The slices, of this and later iterations, whose workers have gone without a report."""
        for progress in self._progress.values():
            if progress.plan.iteration >= iteration:
                yield from (progress.plan.assignments[worker] for worker in progress.lost)

    def history(self, first_iteration: int, limit: int) -> list[IterationRecord]:
        """Records of complete iterations, oldest first; what is too long ago is forgotten."""
        if not self._history:
            return []
        skip = max(0, first_iteration - self._history[0].iteration)
        return [self._history[i] for i in range(skip, min(len(self._history), skip + limit))]

    # -- what the policy learns, elsewhere

    def due_fit(self) -> Fit | None:
        """Learning that is to be done now; see `predictors.Predictor`."""
        return self._policy.due_fit()

    def take_fit(self, weights: Weights | None) -> None:
        """What the fit handed out last has learnt, or None where it failed."""
        self._policy.take_fit(weights)

    def models(self) -> Models:
        """What has been learnt so far."""
        return self._policy.models()

    # -- within

    def _remove(self, worker: str, why: str, now: float) -> None:
        del self._members[worker]
        self._say(f"{worker} {why}")
        self._discard_undelivered()
        for progress in self._progress.values():
            if worker in progress.plan.assignments and worker not in progress.reports:
                progress.lost.add(worker)
        if self._members:
            self._members_changed()
            self._advance(now)

    def _discard_undelivered(self) -> None:
        """Plans that nobody has seen can be made anew, for the members as they are then."""
        while self._progress:
            iteration, progress = next(reversed(self._progress.items()))
            if progress.delivered or progress.reports:
                break
            del self._progress[iteration]
            self._next_iteration = iteration

    def _members_changed(self) -> None:
        try:
            self._policy.set_members([Member(n, m.bounds) for n, m in self._members.items()])
        except InfeasibleError as error:
            self.failure = str(error)

    def _advance(self, now: float) -> None:
        """Complete the iterations that can be, then plan as far ahead as allowed."""
        for iteration, progress in list(self._progress.items()):
            if len(progress.reports) + len(progress.lost) < len(progress.plan.assignments):
                break
            self._complete(progress, now)
            if iteration < self._oldest_needed():
                del self._progress[iteration]
        if not self.started:
            self.started = len(self._members) >= self._config.workers
        if not self.started or not self._members or self.failure:
            return
        last = min(member.reported for member in self._members.values()) + 1 + self._config.lookahead
        while self._next_iteration <= last and not self.failure:
            self._plan_next(now)

    def _oldest_needed(self) -> int:
        """The first iteration whose losses somebody may still have to be told."""
        return min((member.reported for member in self._members.values()), default=0)

    def _plan_next(self, now: float) -> None:
        iteration = self._next_iteration
        epoch, start, total = self.spec.batch(iteration)
        try:
            split = self._policy.split(total)
        except InfeasibleError as error:
            self.failure = str(error)
            return
        if split.warnings and split.warnings != self._last_warning:
            for warning in split.warnings:
                self._say(warning)
        self._last_warning = split.warnings
        counts = dict(zip(self._members, split.counts, strict=True))
        predicted = dict(zip(self._members, split.predicted_speeds, strict=False))
        self._progress[iteration] = _Progress(make_plan(iteration, epoch, start, counts), now, predicted)
        self._next_iteration += 1

    def _complete(self, progress: _Progress, now: float) -> None:
        plan = progress.plan
        if self._history and self._history[-1].iteration >= plan.iteration:
            return  # it was complete before
        records, observations = {}, {}
        for worker, (report, arrival) in progress.reports.items():
            count = plan.assignments[worker].count
            predicted = progress.predicted_speeds.get(worker, math.nan)
            records[worker] = WorkerRecord(
                count,
                report.batch_processing_time,
                report.waiting_time + now - arrival,
                report.cpu_usage,
                report.memory_usage,
                None if math.isnan(predicted) else predicted,
            )
            observations[worker] = Observation(
                count, report.batch_processing_time, report.cpu_usage, report.memory_usage
            )
        record = IterationRecord(plan.iteration, plan.epoch, plan.total, now - progress.released_at, records)
        self._history.append(record)
        self._history_records += len(records)
        while self._history_records > _HISTORY_RECORDS and len(self._history) > 1:
            self._history_records -= len(self._history.popleft().workers)
        self._policy.observe(observations)

    def _say(self, event: str) -> None:
        self.events.append(event)
        self.events_said += 1
