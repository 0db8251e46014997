"""Fitted time curves of workers that compute several micro-batches at once.

A curve gives the time of micro-batches that are computed one after another; several at once take as long as
fewer would so. Thus one curve serves all numbers at once.
"""

from collections.abc import Sequence

import numpy as np

from batchsize_manager.policies.curves import Curves, EqualTime
from batchsize_manager.policies.waves import WaveCurves, Waves
from predictors import Array


class Alone:
    """The numbers of micro-batches that take as long, one after another, as workers' numbers in waves.

    Args:
        waves: Each worker's waves, in multiples of one micro-batch's time, (workers,); None for one that
            computes one micro-batch at once, or samples.
    """

    def __init__(self, waves: Sequence[Waves | None]) -> None:
        self._curves: WaveCurves | None = None  # None in most jobs, where no conversion is needed
        if any(one is not None for one in waves):
            self._curves = WaveCurves([one or Waves((1.0,)) for one in waves])

    def one(self, worker: int, count: int) -> float:
        """Return the number that takes as long, one after another, as `count` in waves."""
        return count if self._curves is None else self._curves.time(worker, count)

    def all(self, counts: Sequence[int]) -> Array:
        """Return `one` of every worker, (workers,)."""
        if self._curves is None:
            return np.array(counts, dtype=float)
        return np.array([self.one(worker, count) for worker, count in enumerate(counts)], dtype=float)

    def within(self, alone: Array) -> Array:
        """Return the most in waves that take no longer than `alone` one after another, (workers,)."""
        return alone if self._curves is None else self._curves.within(alone)


class CurvesInWaves(EqualTime):
    """Curves as the `TimeCurves` of `split_evenly_in_time`, for micro-batches in waves.

    Args:
        curves: The times of micro-batches that are computed one after another.
        alone: The conversion of numbers in waves to numbers one after another.
    """

    def __init__(self, curves: Curves, alone: Alone) -> None:
        super().__init__(curves)
        self._alone = alone

    def time(self, worker: int, count: float) -> float:
        """Return the seconds of one worker; see `TimeCurves.time`."""
        return super().time(worker, self._alone.one(worker, int(count)))

    def within(self, level: float | Array) -> Array:
        """Return the most micro-batches of each worker within a time in seconds, (workers,)."""
        return self._alone.within(super().within(level))
