"""The iterations of a job: those that are planned and under way, and the records of those that are complete.

Keeps what was planned and reported, and finds which iterations are complete. Plans are made in `planner`, and
asked for in `job`.
"""

from collections.abc import Iterator, Mapping

from batchsize_manager.job.effects import Outbox
from batchsize_manager.job.history import History
from batchsize_manager.job.progress import IterationProgress
from idl.plan import Assignment
from idl.records import WorkerRecord
from idl.synchronisation import Synchronisation

_OPEN_RECORDS = 200_000  # workers times iterations, of plans that a member has still to go through


class Iterations:
    """The iterations of a job: those under way, and what is kept of the complete ones.

    Args:
        synchronisation: How the members wait for each other.
        first_iteration: Where the job begins.
        outbox: Takes the records of complete iterations.

    Attributes:
        progress: The iterations under way by number, ascending.
        planned: The first iteration that is not planned.
        first_open: The first that is not complete.
        history: Records of those that are.
        completed_at: When the iteration before the first open one was complete.
    """

    def __init__(self, synchronisation: Synchronisation, first_iteration: int, outbox: Outbox) -> None:
        self.progress: dict[int, IterationProgress] = {}
        self.planned = self.first_open = first_iteration
        self.history = History()
        self.completed_at = 0.0
        self._sync = synchronisation
        self._outbox = outbox

    def add(self, progress: IterationProgress) -> None:
        """Add the plan of the next iteration."""
        self.progress[self.planned] = progress
        self.planned += 1

    def interrupt(self) -> None:
        """Forget what is under way."""
        self.progress.clear()
        self.planned = self.first_open

    def go_to(self, iteration: int, now: float) -> None:
        """Begin again at an iteration, and forget whatever was after it."""
        self.interrupt()
        self.history.forget_from(iteration)
        self.planned = self.first_open = iteration
        self.completed_at = now

    def deliver(self, worker: str, iteration: int) -> Assignment | None:
        """Give a member its own part of an iteration, if it has yet to do it; the plan stands from now on."""
        progress = self.progress.get(iteration)
        part = progress.plan.assignments.get(worker) if progress is not None else None
        if progress is None or part is None or part not in progress.open.get(worker, ()):
            return None
        progress.delivered = True
        return part

    def discard_undelivered(self) -> None:
        """Drop plans that no member has been given; they are made again for the members as they are then."""
        while self.progress:
            iteration, progress = next(reversed(self.progress.items()))
            if progress.delivered or progress.done:
                break
            del self.progress[iteration]
            self.planned = iteration

    def has_piece(self, worker: str) -> bool:
        """Return whether a member has a part to do that was another's."""
        return any(progress.has_piece(worker) for progress in self.progress.values())

    def take_from(self, worker: str, *, redo: bool, first: int = 0) -> None:
        """Take a member's parts from an iteration on; others redo them, or they are lost."""
        for iteration in range(max(first, self.first_open), self.planned):
            if redo:
                self.progress[iteration].withdraw(worker)
            else:
                self.progress[iteration].lose(worker)

    def reinstate(self, worker: str) -> bool:
        """Let a member go on with its parts; return whether it has any that nobody else has been given."""
        return any([progress.reinstate(worker) for progress in self.progress.values()])  # noqa: C419 - all of them

    def is_complete(self, progress: IterationProgress, members: int) -> bool:
        """Return whether no member waits for more reports of an iteration.

        Args:
            progress: The iteration's.
            members: How many members there are.
        """
        if progress.is_settled:
            return True
        if self._sync.mode == "backup":
            assignments = progress.plan.assignments
            can_push = {w for w, part in assignments.items() if part.count and w not in progress.lost}
            enough = min(self._sync.replicas_to_aggregate or 0, len(can_push))
            return len(can_push & progress.done.keys()) >= enough
        return self._sync.mode == "asp" and progress.plan.iteration < self.first_kept(members)

    def first_kept(self, members: int) -> int:
        """Return the iteration that members further behind skip to: old plans must not fill the memory."""
        return self.planned - max(1, _OPEN_RECORDS // max(1, members))

    def complete(self, members: int, now: float) -> Iterator[Mapping[str, WorkerRecord]]:
        """Record the iterations that are complete now, one by one; yield what the policy sees of each."""
        while self.first_open < self.planned:
            progress = self.progress[self.first_open]
            if not self.is_complete(progress, members):
                return
            following = self.progress.get(self.first_open + 1)
            released_at = following.planned_at if following else now  # when whoever waited could go on
            duration = now - max(progress.planned_at, self.completed_at)
            record, observations = progress.complete(released_at, duration, self.history.last)
            self.history.add(record)
            self._outbox.complete(record)
            self.first_open += 1
            self.completed_at = now
            yield observations

    def forget_before(self, iteration: int) -> None:
        """Forget how complete iterations before this one went."""
        while (oldest := next(iter(self.progress), iteration)) < min(iteration, self.first_open):
            del self.progress[oldest]

    def lost_since(self, iteration: int) -> Iterator[Assignment]:
        """Find the slices that are lost of this and later iterations."""
        oldest = next(iter(self.progress), self.planned)
        for later in range(max(iteration, oldest), self.planned):
            yield from self.progress[later].lost.values()
