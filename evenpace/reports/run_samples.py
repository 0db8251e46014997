"""A bounded sample of a run's iterations, evenly spaced, from which workers' lines are drawn.

The workers with lines are known only at the end, and a run may be of any length, so memory is bounded.
"""

from collections.abc import Sequence

import numpy as np

from evenpace.overview.columns import NAMES, QUANTITIES
from evenpace.overview.figures import WorkerTimeline
from evenpace.overview.timeline import of_worker
from idl.records import IterationRecord

_KEPT = 1024  # iterations


class SampledIterations:
    """The iterations whose number is a multiple of a power of two, 1,024 at most, and the last one."""

    def __init__(self) -> None:
        self._stride = 1
        self._kept: dict[int, IterationRecord] = {}
        self._last: IterationRecord | None = None

    def add(self, iteration: IterationRecord) -> None:
        """Add the next iteration, if it is in the sample."""
        self._last = iteration
        if iteration.iteration % self._stride:
            return
        self._kept[iteration.iteration] = iteration
        while len(self._kept) > _KEPT:
            self._stride *= 2
            self._kept = {number: one for number, one in self._kept.items() if number % self._stride == 0}

    def timelines(self, iterations: Sequence[int], workers: Sequence[str]) -> dict[str, WorkerTimeline]:
        """Return the workers' timelines at these iterations; None where they were not kept."""
        kept = self._kept if self._last is None else self._kept | {self._last.iteration: self._last}
        known = [kept[number] for number in iterations if number in kept]
        numbers, lines = np.array(iterations, np.int64), {}
        for worker in workers:
            own = [one for one in known if worker in one.workers]
            places = [one.workers.index(worker) for one in own]
            values = np.array(
                [[one.column(name)[place] for name in NAMES] for one, place in zip(own, places, strict=True)]
            )
            at = np.array([one.iteration for one in own], np.int64)
            lines[worker] = of_worker(numbers, at, values.reshape(-1, QUANTITIES))
        return lines
