"""Fitted time curves of workers that compute several micro-batches at once.

A curve gives the time of samples that are computed one micro-batch after another; several at once take as
long as fewer samples would so. Thus one curve serves all numbers at once.
"""

from collections.abc import Sequence

import numpy as np

from batchsize_manager.policies.curves import Curves, EqualTime
from batchsize_manager.policies.waves import WaveCurves, Waves
from predictors import Array


class Alone:
    """The samples that take as long, one micro-batch after another, as workers' samples in waves.

    Args:
        waves: Each worker's waves, in units of one micro-batch's time, (workers,); None for one that computes
            one micro-batch at once.
        micro_batches: Samples of a micro-batch, (workers,).
    """

    def __init__(self, waves: Sequence[Waves | None], micro_batches: Sequence[int]) -> None:
        self._in_waves = [one is not None for one in waves]
        self._sizes = np.array(micro_batches)
        self._curves: WaveCurves | None = None  # None in most jobs, where no conversion is needed
        if any(self._in_waves):
            self._curves = WaveCurves([one or Waves((1.0,)) for one in waves], micro_batches)

    def one(self, worker: int, count: int) -> float:
        """Return the samples that take as long, one micro-batch after another, as `count` in waves."""
        if self._curves is None or not self._in_waves[worker]:
            return count
        return int(self._sizes[worker]) * self._curves.time(worker, count)

    def all(self, counts: Sequence[int]) -> Array:
        """Return `one` of every worker, (workers,)."""
        if self._curves is None:
            return np.array(counts, dtype=float)
        return np.array([self.one(worker, count) for worker, count in enumerate(counts)], dtype=float)

    def within(self, alone: Array) -> Array:
        """Return the most samples in waves that do not take longer than samples `alone`, (workers,)."""
        if self._curves is None:
            return alone
        return np.where(self._in_waves, self._curves.within(alone / self._sizes), alone)


class CurvesInWaves(EqualTime):
    """Curves as the `TimeCurves` of `split_evenly_in_time`, for samples in waves.

    Args:
        curves: The times of samples that are computed one micro-batch after another.
        alone: The conversion of samples in waves to samples one micro-batch after another.
    """

    def __init__(self, curves: Curves, alone: Alone) -> None:
        super().__init__(curves)
        self._alone = alone

    def time(self, worker: int, count: float) -> float:
        """Return the seconds of one worker; see `TimeCurves.time`."""
        return super().time(worker, self._alone.one(worker, int(count)))

    def _within(self, level: float) -> Array:
        return self._alone.within(super()._within(level))
