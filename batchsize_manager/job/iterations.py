"""The iterations of a job: those that are planned and under way, and the records of those that are complete.

Keeps plans and reports, and finds which iterations are complete. Must not know how plans are made (`planner`)
nor when (`job`).
"""

from collections.abc import Iterator, Mapping

from batchsize_manager.job.effects import Outbox
from batchsize_manager.job.history import History
from batchsize_manager.job.progress import IterationProgress
from idl.plan import Assignment
from idl.records import Report, WorkerRecord
from idl.synchronisation import Synchronisation

_OPEN_RECORDS = 200_000  # workers times iterations of the plans that are kept for the slowest member


class Iterations:
    """The iterations of a job: those under way, and the records of complete ones.

    Args:
        synchronisation: The mode in which the members wait for each other.
        first_iteration: The job's first iteration.
        outbox: Collects the records of complete iterations.

    Attributes:
        planned: The first iteration that is not planned.
        first_open: The first iteration that is not complete.
        reported_by_one: Whether an iteration whose members have all gone is complete only if one of them has
            reported it: then, and not else, the group has taken its step, with the samples of all.
    """

    def __init__(self, synchronisation: Synchronisation, first_iteration: int, outbox: Outbox) -> None:
        self.progress: dict[int, IterationProgress] = {}  # the iterations under way by number, ascending
        self.planned = self.first_open = first_iteration
        self.history = History()  # the records of complete iterations
        self.completed_at = 0.0  # the time at which the last complete iteration was completed, in seconds
        self.reported_by_one = False
        self._interrupted: dict[int, IterationProgress] = {}  # since the last `go_to`, by number
        self._sync = synchronisation
        self._outbox = outbox

    def add(self, progress: IterationProgress) -> None:
        """Add the plan of the next iteration."""
        self.progress[self.planned] = progress
        self.planned += 1

    def interrupt(self) -> None:
        """Drop the plans and reports of all iterations that are not complete."""
        self._interrupted |= {i: progress for i, progress in self.progress.items() if i >= self.first_open}
        self.progress.clear()
        self.planned = self.first_open

    def go_to(self, iteration: int, now: float) -> None:
        """Go to an iteration: drop all plans, and the records of this iteration and later ones."""
        self.interrupt()
        self._interrupted.clear()
        self.history.forget_from(iteration)
        self.planned = self.first_open = iteration
        self.completed_at = now

    def finish_interrupted(self, worker: str, report: Report, now: float) -> None:
        """Take in the report of a member's own part of an iteration that was interrupted before it came."""
        progress = self._interrupted.get(report.iteration)
        part = progress.plan.assignments.get(worker) if progress is not None else None
        if progress is None or part is None or part not in progress.open.get(worker, ()):
            return
        if report.attempt == part.attempt and report.start in (None, part.start):
            progress.finish(worker, part, report, now)

    def record_interrupted(self, iteration: int, now: float) -> None:
        """Record the interrupted iterations before `iteration`, as the job goes on after them.

        A member has taken their steps, and the others get its state.
        """
        while self.first_open < iteration:
            progress = self._interrupted.get(self.first_open)
            if progress is None or not progress.done:
                return
            self._record(progress, now, now)

    def deliver(self, worker: str, iteration: int) -> Assignment | None:
        """Return a member's own part of an iteration, whose plan cannot be discarded from now on.

        Returns:
            None if the iteration is not planned, or the member has no part in it or is done with it.
        """
        progress = self.progress.get(iteration)
        part = progress.plan.assignments.get(worker) if progress is not None else None
        if progress is None or part is None or part not in progress.open.get(worker, ()):
            return None
        progress.delivered = True
        return part

    def discard_undelivered(self) -> None:
        """Drop the plans of which no member has a part yet, so that they are made for the present members."""
        while self.progress:
            iteration, progress = next(reversed(self.progress.items()))
            if progress.delivered or progress.done:
                break
            del self.progress[iteration]
            self.planned = iteration

    def has_piece(self, worker: str) -> bool:
        """Return whether a member has a part to do that was another member's."""
        return any(progress.has_piece(worker) for progress in self.progress.values())

    def take_from(self, worker: str, *, redo: bool, first: int = 0) -> None:
        """Take a member's unfinished parts from it.

        Args:
            redo: Whether others are to redo these parts; if not, they are lost.
            first: The first iteration whose part is taken.
        """
        for iteration in range(max(first, self.first_open), self.planned):
            if redo:
                self.progress[iteration].withdraw(worker)
            else:
                self.progress[iteration].lose(worker)

    def reinstate(self, worker: str) -> bool:
        """Give a member back its parts that nobody else has got; return whether there are any."""
        return any([progress.reinstate(worker) for progress in self.progress.values()])  # noqa: C419 - all of them

    def has_one_without(self, worker: str) -> bool:
        """Return whether an iteration is planned, and not complete, in which a member never had a part."""
        open_ones = (progress for i, progress in self.progress.items() if i >= self.first_open)
        return any(worker not in progress.plan.assignments for progress in open_ones)

    def is_complete(self, progress: IterationProgress, members: int) -> bool:
        """Return whether no member waits for more reports of an iteration.

        Args:
            progress: The iteration.
        """
        if progress.is_settled:
            return bool(progress.done) or not self.reported_by_one
        if self._sync.mode == "backup":
            assignments = progress.plan.assignments
            can_push = {w for w, part in assignments.items() if part.count and w not in progress.lost}
            enough = min(self._sync.replicas_to_aggregate or 0, len(can_push))
            return len(can_push & progress.done.keys()) >= enough
        return self._sync.mode == "asp" and progress.plan.iteration < self.first_kept(members)

    def first_kept(self, members: int) -> int:
        """Return the oldest iteration whose plan is kept in asp: members further behind skip to it.

        That limits the memory that old plans take.
        """
        return self.planned - max(1, _OPEN_RECORDS // max(1, members))

    def complete(self, members: int, now: float) -> Iterator[Mapping[str, WorkerRecord]]:
        """Record the iterations that are complete now, and yield the observations of each, by worker."""
        while self.first_open < self.planned:
            progress = self.progress[self.first_open]
            if not self.is_complete(progress, members):
                return
            following = self.progress.get(self.first_open + 1)
            released_at = following.planned_at if following else now  # when those that waited could go on
            yield self._record(progress, released_at, now)

    def _record(
        self, progress: IterationProgress, released_at: float, now: float
    ) -> Mapping[str, WorkerRecord]:
        """Record the first open iteration as complete, and return the observations of it, by worker.

        Where the manager forms the members' group, a step has all samples, also those of members that did not
        report it, as they were lost then: there is no record of it, since it would not add up to the batch.
        """
        duration = now - max(progress.planned_at, self.completed_at)
        record, observations = progress.complete(released_at, duration, self.history.last)
        if not self.reported_by_one or sum(record.batch_sizes) == record.total:
            self.history.add(record)
            self._outbox.complete(record)
        self.first_open += 1
        self.completed_at = now
        return observations

    def forget_before(self, iteration: int) -> None:
        """Drop the plans and reports of complete iterations before `iteration`."""
        while (oldest := next(iter(self.progress), iteration)) < min(iteration, self.first_open):
            del self.progress[oldest]

    def lost_since(self, iteration: int) -> Iterator[Assignment]:
        """Yield the slices of this and later iterations that are lost."""
        oldest = next(iter(self.progress), self.planned)
        for later in range(max(iteration, oldest), self.planned):
            yield from self.progress[later].lost.values()
