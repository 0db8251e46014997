"""An iteration under way: parts that are still to be done, reported, or to be redone.

Parts are slices of the iteration's batch. A member's own part is its slice of the plan; parts of members that
have gone, which others are given later, are pieces. No part is ever open with two members at once, and the
parts that are open, pooled, lost or done tile the batch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from batchsize_manager.job.costs import BatchCosts
from batchsize_manager.policies.solver import split
from idl.bounds import MOST_AT_ONCE, Bounds
from idl.gradient_norms import StepNorms
from idl.plan import Assignment, Plan
from idl.records import IterationRecord, Report, WorkerRecord

# Computed from a worker's reports together.
_COMPUTED = {"batch_processing_time", "waiting_time", "at_once", "communication_time"}
_AS_REPORTED = [
    name for name in WorkerRecord._fields if name not in _COMPUTED and name in Report.__dataclass_fields__
]


def scaled_times(record: WorkerRecord, factor: float, of_pass: float | None = None) -> WorkerRecord:
    """Return a record of computing that takes `factor` times as long.

    Args:
        of_pass: The factor of the backward pass, where that is of a part alone; None: the same.
    """
    of_pass = factor if of_pass is None else of_pass
    return record._replace(
        batch_processing_time=record.batch_processing_time * factor,
        communication_time=record.communication_time * factor,
        backward_time=record.backward_time * of_pass,
        first_bucket_time=record.first_bucket_time * of_pass,
    )


@dataclass(frozen=True, slots=True)
class Done:
    """A part that was reported, the report, and the time of its arrival in seconds."""

    part: Assignment
    report: Report
    arrival: float


@dataclass(slots=True)
class IterationProgress:
    """State of an iteration under way."""

    plan: Plan  # the plan, with each member's own part
    planned_at: float  # the time at which it was planned, in seconds
    predicted_speeds: Mapping[str, float]  # samples per second, by member's name
    costs: BatchCosts | None = None  # of the batch's samples; None where they are not known
    # By member's name, the units that the policy chose, where costs are known: shares of the batch's cost.
    shares: Mapping[str, int] = field(default_factory=dict)
    delivered: bool = False  # whether any member has been given its part
    # The parts that each member has still to do, in that order, by name.
    open: dict[str, list[Assignment]] = field(default_factory=dict)
    # The parts that each member has reported, in that order, by name.
    done: dict[str, list[Done]] = field(default_factory=dict)
    # Own parts of members that have gone, in modes in which nobody redoes them, by name.
    lost: dict[str, Assignment] = field(default_factory=dict)
    # Parts that are to be redone, and that no member has been given yet.
    pool: list[Assignment] = field(default_factory=list)
    _withdrawn: dict[str, list[Assignment]] = field(default_factory=dict)
    _given: set[tuple[str, Assignment]] = field(default_factory=set)  # pieces that were sent to a member

    def __post_init__(self) -> None:
        self.open = {worker: [part] for worker, part in self.plan.assignments.items()}

    @property
    def is_settled(self) -> bool:
        """True if nothing of the batch is left to do."""
        return not self.open and not self.pool

    def has_piece(self, worker: str) -> bool:
        """Return whether a member has a part to do that was another member's."""
        parts = self.open.get(worker)
        if not parts:
            return False
        # Most members have no more than their own part, and this is called several times for each.
        return len(parts) > 1 or parts[0] is not self.plan.assignments.get(worker)

    def next_piece(self, worker: str) -> Assignment | None:
        """Return the piece that a member does next, once it has done its own part; None if there is none."""
        if not self.has_piece(worker):
            return None
        piece = self.open[worker][0]
        self._given.add((worker, piece))
        return piece

    def piece_at(self, worker: str, start: int | None) -> Assignment | None:
        """Return the piece that begins at `start`, or the first one if `start` is None.

        Returns:
            None if the member has no such piece, or has not been sent it.
        """
        if not self.has_piece(worker):
            return None
        pieces = (p for p in self.open[worker] if (worker, p) in self._given and start in (None, p.start))
        return next(pieces, None)

    def expected_seconds(self, worker: str) -> float:
        """Return how long a member needs for the piece that it does next, by what it has reported last.

        A piece takes at least as long as that part did, since fixed costs do not shrink with the samples. 0
        where nothing can be expected, since the member has done no samples of this iteration.
        """
        done = [each for each in self.done.get(worker, ()) if each.part.count]
        if not done or not self.has_piece(worker):
            return 0.0
        last = done[-1]
        return last.report.batch_processing_time * max(1.0, self.open[worker][0].count / last.part.count)

    def given_piece(self, worker: str) -> Assignment | None:
        """Return the piece that a member was sent, and has not reported; None if there is none."""
        return self.piece_at(worker, None)

    def finish(self, worker: str, part: Assignment, report: Report, now: float) -> None:
        """Take in the report of a part."""
        self._close(worker, part)
        self.done.setdefault(worker, []).append(Done(part, report, now))

    def lose(self, worker: str) -> None:
        """Give up a member's own part, which nobody redoes."""
        if self.open.pop(worker, None):
            self.lost[worker] = self.plan.assignments[worker]

    def withdraw(self, worker: str) -> bool:
        """Pool the parts that a member has still to do.

        Returns:
            Whether it had anything to do.
        """
        parts = self.open.pop(worker, None)
        if parts is None:
            return False
        self._withdrawn[worker] = parts
        self.pool += [part for part in parts if part.count]
        return True

    def reinstate(self, worker: str) -> bool:
        """Give a member back the parts that were withdrawn from it, if nobody else has got any of them.

        Returns:
            Whether it has got them back.
        """
        parts = self._withdrawn.pop(worker, None)
        if parts is None or any(part.count and part not in self.pool for part in parts):
            return False
        self.pool = [part for part in self.pool if part not in parts]
        self.open[worker] = parts
        return True

    def deal(self, takers: Mapping[str, Bounds]) -> list[str]:
        """Split the pooled parts among members, in proportion to their own parts.

        Each is given one piece at most, of whole micro-batches, none more than its maximum; what is left
        stays in the pool.

        Args:
            takers: The bounds of the members that may be given a piece, by name.

        Returns:
            The names of the members that have got a piece.
        """
        got: dict[str, None] = {}
        cuts, origin = self.plan.cuts, self.plan.start
        while self.pool and len(got) < len(takers):
            free = {name: bounds.in_units(cuts.size) for name, bounds in takers.items() if name not in got}
            part = self.pool.pop(0)
            wanted = cuts.number(part.count)
            fits = min(wanted, sum(bounds.maximum for bounds in free.values()))
            shares = [float(self.plan.assignments[name].count) for name in free]
            at_least_one = [b if b.minimum == 1 else replace(b, minimum=1) for b in free.values()]
            numbers = split(shares, fits, at_least_one)
            position = part.start
            counts = cuts.counts(numbers, cuts.index(position - origin))
            for name, count in zip(free, counts, strict=True):
                if count:
                    at_once = self.plan.assignments[name].at_once
                    piece = replace(part, start=position, count=count, at_once=at_once)
                    self.open.setdefault(name, []).append(piece)
                    got[name] = None
                    position += count
            if fits < wanted:
                self.pool.insert(0, replace(part, start=position, count=part.end - position))
        return list(got)

    def complete(
        self, released_at: float, duration: float, before: IterationRecord | None
    ) -> tuple[IterationRecord, dict[str, WorkerRecord]]:
        """Return the iteration's record, and the observations of it for the policy, by worker.

        In the record, a worker's numbers cover all its parts; an observation is of its own part alone, whose
        size the policy chose; where costs are known, as if its cost were what the policy chose.

        Args:
            released_at: The time at which the members that waited could go on, in seconds.
            duration: Seconds that the iteration took.
            before: The record of the iteration before, if there is one.
        """
        plan = self.plan
        parts = {name: self._worker_record(name, done, released_at) for name, done in self.done.items()}
        observations = {
            name: parts[name] if len(done) == 1 else self._worker_record(name, done[:1], released_at)
            for name, done in self.done.items()
            if done[0].part is plan.assignments[name]
        }
        if self.costs is not None:
            observations = {name: self._as_chosen(name, one) for name, one in observations.items()}
        told = [one.report.norms for done in self.done.values() for one in done]
        norms = StepNorms.joined(plan.iteration, plan.total, told)
        if norms is None and before is not None:
            norms = StepNorms.joined(before.iteration, before.total, told)
        record = IterationRecord.of(
            plan.iteration, plan.epoch, plan.total, duration, parts, plan.attempt, plan.start, norms
        )
        return record, observations

    def _as_chosen(self, worker: str, record: WorkerRecord) -> WorkerRecord:
        share = self.shares[worker]
        if not share or not record.cost > 0:
            return record
        chosen = float(share * self.plan.unit)
        return scaled_times(record, chosen / record.cost)._replace(cost=chosen)

    def _close(self, worker: str, part: Assignment) -> None:
        self.open[worker].remove(part)
        if not self.open[worker]:
            del self.open[worker]

    def _worker_record(self, worker: str, done: list[Done], released_at: float) -> WorkerRecord:
        count, seconds, communicated = 0, 0.0, 0.0
        waiting = max(0.0, released_at - done[-1].arrival)
        cost = math.nan if self.costs is None else 0.0
        earlier: Done | None = None
        for later in done:
            report = later.report
            count += later.part.count
            if self.costs is not None:
                cost += self.costs.slice(later.part.start - self.plan.start, later.part.count)
            seconds += report.batch_processing_time
            communicated += math.nan if report.communication_time is None else report.communication_time
            waiting += report.waiting_time
            if earlier is not None:  # it waited for this part, too
                between = later.arrival - earlier.arrival
                waiting += max(0.0, between - report.batch_processing_time - report.waiting_time)
            earlier = later
        return WorkerRecord(
            batch_size=count,
            batch_processing_time=seconds,
            waiting_time=waiting,
            predicted_speed=self.predicted_speeds.get(worker, math.nan),
            at_once=min(report.at_once or MOST_AT_ONCE, done[-1].part.at_once),
            communication_time=min(communicated, seconds),
            cost=cost,
            **{name: value for name in _AS_REPORTED if (value := getattr(report, name)) is not None},
        )
