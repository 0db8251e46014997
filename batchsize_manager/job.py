"""A job as a state machine: who is in it, who has reported, and what everybody does next.

Events come in through `join`, `report`, `leave`, `disconnect` and `tick`, each with its time; what
follows from them is read from `assignment_after`, `lost_since`, `history` and `failure`. No sockets,
no threads, and no clock of its own, so that it can be tested and replayed event by event.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from batchsize_manager.plan import Assignment, JobSpec, Plan, make_plan
from batchsize_manager.policies import Member, Observation, Policy
from batchsize_manager.rounding import Bounds, InfeasibleError
from batchsize_manager.synchronisation import Synchronisation
from predictors import Fit, Models, Weights
from rpc.errors import InvalidRequestError, NotMemberError

_HISTORY_RECORDS = 200_000  # workers times iterations; the oldest go first
_OPEN_RECORDS = 200_000  # likewise, of plans that a member has still to go through
_EVENTS = 200
_SHORTEST = 1e-9  # seconds; a batch processing time below that is a broken clock's


@dataclass(frozen=True)
class JobConfig:
    """How a manager runs its jobs.

    Attributes:
        workers: The job starts when so many have joined.
        lookahead: Iterations that are planned ahead of the reports; 0 is the paper's blocking mode.
        report_timeout: Seconds that others wait for a member's report, or are ahead of a member that says
            nothing, before the member is taken out.
        reconnect_grace: Seconds in which a member whose connection broke may come back.
        synchronisation: How the members wait for each other.

    Raises:
        ValueError: A number is out of its range.
    """

    workers: int = 1
    lookahead: int = 0
    report_timeout: float = 120.0
    reconnect_grace: float = 1.0
    synchronisation: Synchronisation = field(default_factory=Synchronisation)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers {self.workers}: must be at least 1")
        if self.lookahead < 0:
            raise ValueError(f"lookahead {self.lookahead}: must be at least 0")
        if not 0 < self.report_timeout < float("inf"):
            raise ValueError(f"report_timeout {self.report_timeout}: must be above 0 s")
        if not 0 <= self.reconnect_grace < float("inf"):
            raise ValueError(f"reconnect_grace {self.reconnect_grace}: must be at least 0 s")
        sync = self.synchronisation
        if self.lookahead and sync.mode != "bsp":
            raise ValueError(f"lookahead {self.lookahead}: belongs to bsp, but the mode is {sync.mode}")
        if (sync.replicas_to_aggregate or 0) > self.workers:
            raise ValueError(
                f"replicas_to_aggregate {sync.replicas_to_aggregate}: "
                f"must be at most the number of workers, {self.workers}"
            )

    @property
    def ahead(self) -> int:
        """How many iterations are planned beyond the first that is not complete; not for asp."""
        return self.synchronisation.staleness or self.lookahead


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
    duration: float  # seconds until it was complete, from its release or, if later, the one before it
    workers: Mapping[str, WorkerRecord]


@dataclass(slots=True)
class _Membership:
    incarnation: str
    bounds: Bounds
    joined_at: float
    first: int  # the first iteration that it may be planned into
    reported: int  # the last iteration that it has reported
    assigned: int  # the iteration that it works on or, where it waits, works on next
    heard_at: float  # when it reported last, or joined
    disconnected_at: float | None = None


@dataclass(slots=True)
class _Progress:
    """An iteration that is planned, and that not all members have gone through yet."""

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
        self._first_open = 0  # the first that is not complete
        self._completed_at = 0.0  # when the one before that was
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
        self._members[worker] = _Membership(incarnation, bounds, now, first, first - 1, first, now)
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
        if report.iteration != member.assigned or report.iteration >= self._next_iteration:
            raise InvalidRequestError(
                f"report of iteration {report.iteration}, but {member.assigned} is next for {worker!r}"
            )
        progress = self._progress.get(report.iteration)
        assignment = progress.plan.assignments[worker] if progress else None
        if assignment is not None and assignment.count and report.batch_processing_time < _SHORTEST:
            raise InvalidRequestError(
                f"batch_processing_time {report.batch_processing_time} for {assignment.count} samples: "
                f"must be at least {_SHORTEST} s"
            )
        member.reported = report.iteration
        member.assigned = report.iteration + 1
        member.heard_at = now
        if progress is None:
            return  # the others went on so long ago that the iteration is forgotten
        progress.reports[worker] = (report, now)
        asks_for_more = self._mode == "asp" and member.assigned == self._next_iteration
        if asks_for_more or self._is_complete(progress):
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
        for worker, iteration in self._late(now):
            self._remove(worker, f"did not report iteration {iteration} in time", now)

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
        # In backup, and in asp at the utmost, iterations may be complete without this member: it skips them.
        iteration = max(member.reported + 1, self._first_open)
        progress = self._progress.get(iteration)
        if progress is None or worker not in progress.plan.assignments:
            return None
        member.assigned = iteration
        progress.delivered = True
        return progress.plan.assignments[worker]

    def lost_since(self, iteration: int) -> Iterator[Assignment]:
        """The slices, of this and later iterations, whose workers have gone without a report.

        None in the asynchronous modes, in which nobody waits for a slice.
        """
        if self._config.synchronisation.asynchronous:
            return
        oldest = next(iter(self._progress), self._next_iteration)
        for later in range(max(iteration, oldest), self._next_iteration):
            progress = self._progress[later]
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

    @property
    def _mode(self) -> str:
        return self._config.synchronisation.mode

    def _remove(self, worker: str, why: str, now: float) -> None:
        del self._members[worker]
        self._say(f"{worker} {why}")
        self._discard_undelivered()
        for iteration in range(self._first_open, self._next_iteration):
            progress = self._progress[iteration]
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

    def _late(self, now: float) -> list[tuple[str, int]]:
        """The members that are to be taken out for their silence, with the iteration they did not report."""
        before = now - self._config.report_timeout
        since: dict[int, float] = {}  # iteration to the time since when others are done with it
        late = []
        for worker, member in self._members.items():
            iteration = member.assigned
            if member.heard_at > before or iteration >= self._next_iteration:
                continue  # it is not silent, or waits itself
            if iteration not in since:
                since[iteration] = self._waited_since(iteration)
            if since[iteration] <= before:
                late.append((worker, iteration))
        return late

    def _waited_since(self, iteration: int) -> float:
        """When the first of the members was done with a planned iteration; infinity if none is."""
        progress = self._progress.get(iteration)
        if progress is None:
            return -math.inf  # so long ago that it is forgotten
        reported = (at for worker, (_, at) in progress.reports.items() if worker in self._members)
        joined = (member.joined_at for member in self._members.values() if member.first > iteration)
        return min(itertools.chain(reported, joined), default=math.inf)

    def _is_complete(self, progress: _Progress) -> bool:
        """Whether nobody waits for more reports of an iteration."""
        assignments = progress.plan.assignments
        if len(progress.reports) + len(progress.lost) == len(assignments):
            return True
        if self._mode == "backup":
            can_push = {w for w, part in assignments.items() if part.count and w not in progress.lost}
            enough = min(self._config.synchronisation.replicas_to_aggregate or 0, len(can_push))
            return len(can_push & progress.reports.keys()) >= enough
        return self._mode == "asp" and progress.plan.iteration < self._first_kept()

    def _first_kept(self) -> int:
        """Who is behind this iteration skips to it, lest the plans that only it needs fill the memory."""
        return self._next_iteration - max(1, _OPEN_RECORDS // max(1, len(self._members)))

    def _advance(self, now: float) -> None:
        """Complete the iterations that can be, then plan as far ahead as allowed."""
        while self._first_open < self._next_iteration:
            progress = self._progress[self._first_open]
            if not self._is_complete(progress):
                break
            self._complete(progress, now)
            self._first_open += 1
            self._completed_at = now
        needed = min(self._oldest_needed(), self._first_open)
        for iteration in list(itertools.takewhile(lambda i: i < needed, self._progress)):
            del self._progress[iteration]
        if not self.started:
            self.started = len(self._members) >= self._config.workers
        if not self.started or not self._members or self.failure:
            return
        if self._mode == "asp":
            last = max(member.reported for member in self._members.values()) + 1
        else:
            last = self._first_open + self._config.ahead
        while self._next_iteration <= last and not self.failure:
            self._plan_next(now)

    def _oldest_needed(self) -> int:
        """The first iteration that a member may still report, or have to be told the losses of."""
        slowest = min((member.reported for member in self._members.values()), default=0)
        return max(slowest, self._first_kept())

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
        following = self._progress.get(plan.iteration + 1)
        released_at = following.released_at if following else now  # when whoever waited could go on
        records, observations = {}, {}
        for worker, (report, arrival) in progress.reports.items():
            count = plan.assignments[worker].count
            predicted = progress.predicted_speeds.get(worker, math.nan)
            records[worker] = WorkerRecord(
                count,
                report.batch_processing_time,
                report.waiting_time + max(0.0, released_at - arrival),
                report.cpu_usage,
                report.memory_usage,
                None if math.isnan(predicted) else predicted,
            )
            observations[worker] = Observation(
                count, report.batch_processing_time, report.cpu_usage, report.memory_usage
            )
        duration = now - max(progress.released_at, self._completed_at)
        record = IterationRecord(plan.iteration, plan.epoch, plan.total, duration, records)
        self._history.append(record)
        self._history_records += len(records)
        while self._history_records > _HISTORY_RECORDS and len(self._history) > 1:
            self._history_records -= len(self._history.popleft().workers)
        self._policy.observe(observations)

    def _say(self, event: str) -> None:
        self.events.append(event)
        self.events_said += 1
