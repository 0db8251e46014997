"""Measured step times against the batch size, as curves: nothing is fitted, lines join what was measured."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.solver import fill_to_level
from idl.bounds import Bounds
from predictors import Array

_UNSEEN_ELASTICITY = 0.5  # at the least, beyond the largest batch that was measured


@dataclass(frozen=True)
class StepTimes:
    """Measured step times of a device."""

    sizes: tuple[int, ...]  # batch sizes in samples, increasing
    seconds: tuple[float, ...]  # step time of each batch size, never decreasing

    def in_units(self, size: int) -> "StepTimes":
        """Return the step times by batch sizes in units of `size` samples, of which they are multiples."""
        return StepTimes(tuple(samples // size for samples in self.sizes), self.seconds)

    @property
    def bounds(self) -> Bounds:
        """Return the least and the largest batch size measured."""
        return Bounds(self.sizes[0], self.sizes[-1])

    def table(self) -> Array:
        """Return the seconds for each batch size within the bounds, interpolated."""
        counts = np.arange(self.sizes[0], self.sizes[-1] + 1)
        return np.interp(counts, self.sizes, self.seconds)

    @cached_property
    def slope(self) -> float:
        """Seconds of each sample beyond the largest batch measured.

        It is the slope of the last line, but the time is taken to grow at least half as fast as the batch: a
        last line may be flat by chance, and the batch must not seem to cost nothing.
        """
        least = _UNSEEN_ELASTICITY * self.seconds[-1] / self.sizes[-1]
        if len(self.sizes) == 1:
            return least
        return max(least, (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2]))

    def time(self, count: int) -> float:
        """Return the seconds of a batch of `count` samples, 0 for none.

        Below the smallest batch measured it is that one's time; beyond the largest, see `slope`.
        """
        if not count:
            return 0.0
        beyond = max(0, count - self.sizes[-1])
        return float(np.interp(count, self.sizes, self.seconds)) + self.slope * beyond

    def within(self, level: float) -> float:
        """Return the most samples, as a real number, that take at most `level` seconds."""
        if level < self.seconds[0]:
            return 0.0
        i = bisect_right(self.seconds, level) - 1
        rest = level - self.seconds[i]
        if i == len(self.sizes) - 1:
            return self.sizes[i] + rest / self.slope
        share = rest / (self.seconds[i + 1] - self.seconds[i])
        return self.sizes[i] + share * (self.sizes[i + 1] - self.sizes[i])


class StepTimeCurves:
    """Step times as the `TimeCurves` of `split_evenly_in_time`.

    Args:
        workers: Each worker's step times, (workers,); equal ones are computed once.
    """

    def __init__(self, workers: Sequence[StepTimes]) -> None:
        row_of = {times: row for row, times in enumerate(dict.fromkeys(workers))}
        self._workers = workers
        self._kinds = list(row_of)
        self._kind_of = [row_of[times] for times in workers]

    def time(self, worker: int, count: int) -> float:
        """Return the seconds of one worker; see `TimeCurves.time`."""
        return self._workers[worker].time(count)

    def fill(self, total: int, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return counts just below the best split; see `TimeCurves.fill`."""
        return fill_to_level(self.time, self._within, total, low, high)

    def _within(self, level: float) -> Array:
        samples: Array = np.array([kind.within(level) for kind in self._kinds])[self._kind_of]
        return samples


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the never decreasing values that are nearest to noisy ones, by weighted least squares.

    Neighbours of which the first is larger are replaced by their mean, until there are none (isotonic
    regression by pooling adjacent violators). The largest value so far would let one spike lift all after it.
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, before, number = pools.pop()
            both = before + pool[1]
            pool = ((mean * before + pool[0] * pool[1]) / both, both, number + pool[2])
        pools.append(pool)
    return [mean for mean, _, number in pools for _ in range(number)]
