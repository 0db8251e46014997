"""Totals of a run beyond its figures: each worker's presence, and the changes of the split.

The iterations are added one after the other; of the changes, a bounded number is kept.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idl.records import IterationRecord

_CHANGES = 25  # of the split that are kept: those that moved most samples
_SIZES = 50  # of the whole batch that are kept: the last ones


@dataclass(slots=True)
class WorkerPresence:
    """A worker's part in a run; times in seconds of training since the run's first iteration."""

    worker: str  # the worker's name
    first: int  # the first iteration that it took part in
    last: int  # the last iteration that it took part in
    came: float  # time at which the first one began
    went: float  # time at which the last one was complete
    iterations: int = 0  # number of iterations that it took part in
    samples: int = 0  # samples that it processed


@dataclass(frozen=True, slots=True)
class SplitChange:
    """A batch that was split otherwise than the one before it, over the same workers."""

    iteration: int  # number of the batch's iteration
    at: float  # time of its beginning, in seconds of training
    moved: int  # samples that moved from some workers to others
    loser: str  # the worker that lost most samples
    lost: tuple[int, int]  # its samples before and after
    winner: str  # the worker that gained most samples
    won: tuple[int, int]  # its samples before and after


@dataclass(frozen=True, slots=True)
class SizeChange:
    """A change of the whole batch's size from an iteration on, and the number of members then."""

    iteration: int
    at: float
    samples: int
    members: int


class RunTotals:
    """Totals over the iterations so far."""

    def __init__(self) -> None:
        self.seconds = 0.0  # seconds that they took
        self.splits = 0  # batches that were split otherwise than the one before
        self.resizes = 0  # changes of the whole batch's size; a smaller last batch of an epoch does not count
        self.sizes: list[SizeChange] = []  # the whole batch's last sizes, at most 50, the first one included
        self._present: dict[str, WorkerPresence] = {}
        self._changes: list[tuple[int, int, SplitChange]] = []  # a heap, the smallest first
        self._before: IterationRecord | None = None
        self._pending: SizeChange | None = None
        self._counted: tuple[tuple[str, ...], int, NDArray[np.int64]] = ((), 0, np.zeros(0, np.int64))

    def add(self, iteration: IterationRecord) -> None:
        """Add the next iteration."""
        if self._before is None or iteration.workers != self._before.workers:
            self._settle()
            for worker in iteration.workers:
                if worker not in self._present:
                    number, at = iteration.iteration, self.seconds
                    self._present[worker] = WorkerPresence(worker, number, number, at, at)
            self._counted = (iteration.workers, 0, np.zeros(len(iteration.workers), np.int64))
        elif iteration.total == self._before.total:
            self._compare(self._before, iteration)
        workers, count, samples = self._counted
        self._counted = (workers, count + 1, samples + iteration.batch_sizes)
        self._size(iteration)
        self.seconds += iteration.duration
        self._before = iteration

    @property
    def presences(self) -> list[WorkerPresence]:
        """The workers, in the order in which they joined."""
        self._settle()
        return list(self._present.values())

    @property
    def changes(self) -> list[SplitChange]:
        """The changes of the split that moved most samples, in the order of time."""
        return sorted((change for _, _, change in self._changes), key=lambda change: change.iteration)

    def _settle(self) -> None:
        """Add the counts since the members last changed to the workers."""
        workers, count, samples = self._counted
        if self._before is not None and count:
            for worker, its_samples in zip(workers, samples.tolist(), strict=True):
                presence = self._present[worker]
                presence.last, presence.went = self._before.iteration, self.seconds
                presence.iterations += count
                presence.samples += its_samples
        self._counted = (workers, 0, np.zeros(len(workers), np.int64))

    def _compare(self, before: IterationRecord, after: IterationRecord) -> None:
        gained = after.batch_sizes - before.batch_sizes
        moved = int(np.maximum(gained, 0).sum())
        if not moved:
            return
        self.splits += 1
        loser, winner = int(gained.argmin()), int(gained.argmax())
        change = SplitChange(
            after.iteration,
            self.seconds,
            moved,
            after.workers[loser],
            (int(before.batch_sizes[loser]), int(after.batch_sizes[loser])),
            after.workers[winner],
            (int(before.batch_sizes[winner]), int(after.batch_sizes[winner])),
        )
        heapq.heappush(self._changes, (moved, self.splits, change))
        if len(self._changes) > _CHANGES:
            heapq.heappop(self._changes)

    def _size(self, iteration: IterationRecord) -> None:
        """Record a new size once a second batch has it: the last batch of an epoch may be smaller."""
        known = self.sizes[-1].samples if self.sizes else None
        if iteration.total == known:
            self._pending = None
        elif known is None or (self._pending is not None and self._pending.samples == iteration.total):
            change = SizeChange(iteration.iteration, self.seconds, iteration.total, len(iteration.workers))
            self.resizes += known is not None
            self.sizes = [*self.sizes, self._pending or change][-_SIZES:]
            self._pending = None
        else:
            self._pending = SizeChange(
                iteration.iteration, self.seconds, iteration.total, len(iteration.workers)
            )
