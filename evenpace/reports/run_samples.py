"""A bounded sample of a run's iterations, evenly spaced, from which workers' lines are drawn.

The workers with lines are known only at the end, and a run may be of any length, so memory is bounded.
"""

import math
from collections.abc import Sequence

from evenpace.overview.figures import WorkerTimeline
from idl.measures import computing_time
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
        kept = dict(self._kept)
        if self._last is not None:
            kept[self._last.iteration] = self._last
        lines = {worker: WorkerTimeline([], [], [], [], [], [], []) for worker in workers}
        for number in iterations:
            one = kept.get(number)
            places = {} if one is None else {name: i for i, name in enumerate(one.workers)}
            for worker, line in lines.items():
                _append(line, one, places.get(worker))
        return lines


def _append(line: WorkerTimeline, one: IterationRecord | None, place: int | None) -> None:
    """Add a worker's part of an iteration, or a gap."""
    if one is None or place is None:
        values: tuple[float, ...] = (math.nan,) * 7
    else:
        size, time = float(one.batch_sizes[place]), float(one.batch_processing_times[place])
        speed = size / time if size > 0 and time > 0 else math.nan
        communication = float(one.column("communication_time")[place])
        values = (
            *(size, time, float(computing_time(time, communication)), communication),
            *(float(one.waiting_times[place]), speed, float(one.predicted_speeds[place])),
        )
    parts = (
        line.batch_sizes,
        line.batch_processing_times,
        line.computing_times,
        line.communication_times,
        line.waiting_times,
        line.speeds,
        line.predicted_speeds,
    )
    for part, value in zip(parts, values, strict=True):
        part.append(value if math.isfinite(value) else None)
