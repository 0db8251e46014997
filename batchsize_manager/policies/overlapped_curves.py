"""Iteration times where transfers of gradients overlap with the backward pass (Cannikin)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.curves import Curves, EqualTime
from batchsize_manager.policies.curves_in_waves import Alone, CurvesInWaves
from batchsize_manager.policies.solver import fill_to_level
from predictors import Array


@dataclass(frozen=True)
class OverlappedCurves:
    """The time that an iteration takes by each worker: equation 7 of Cannikin, whose maximum it is.

    A worker's iteration takes max(t_compute + T_u, syncStart + T_comm). With a = q b + s, the time before the
    backward pass, and P = k b + m, that of the backward pass, t_compute = a + P (equation 3) and syncStart =
    a + γ P, the moment when the first bucket of gradients is ready (equation 4). Both grow with the batch
    size b, and are piecewise linear. In micro-batches P is that of the last one alone and does not grow, so
    that syncStart is t_compute less a constant: `starts` is t_compute, and `communication` has that constant.

    With an all-reduce T_u and T_comm are the same for all workers. With a parameter server each has its own,
    by its link, in which the pull is a part of T_u.
    """

    computing: Curves  # t_compute of each worker, in seconds
    starts: Curves  # syncStart of each worker, in seconds
    # T_u, the seconds in which the last bucket is summed, or pushed and parameters are pulled; (workers,).
    last: Array
    # T_comm = T_o + T_u, the seconds in which all buckets are; in micro-batches, less (1 - γ) P; (workers,).
    communication: Array
    measured_whole: bool  # whether batch processing times contain what of that is not hidden

    @property
    def error(self) -> Array:
        """The relative standard deviation of the times, at most; see `Curves.error`."""
        return np.maximum(self.computing.error, self.starts.error)

    @property
    def reach(self) -> Array:
        """The largest batch size that was measured, in units, (workers,)."""
        return self.computing.reach

    def times(self, counts: Array) -> Array:
        """Return the seconds of an iteration by each worker's batch, (workers,)."""
        computing, starts = self.computing.times(counts), self.starts.times(counts)
        return np.maximum(computing + self.last, starts + self.communication)

    def processing_times(self, counts: Array) -> Array:
        """Return the seconds of each worker's batch processing time, (workers,)."""
        return self.times(counts) if self.measured_whole else self.computing.times(counts)

    def without(self, rows: Sequence[int]) -> "OverlappedCurves":
        """Return the curves of all workers but those in `rows`."""
        return replace(
            self,
            computing=self.computing.without(rows),
            starts=self.starts.without(rows),
            last=np.delete(self.last, rows),
            communication=np.delete(self.communication, rows),
        )

    def equal_time(self) -> "OverlappedTime":
        """Return the curves for `split_evenly_in_time`."""
        return OverlappedTime(self)

    def in_waves(self, alone: Alone) -> "OverlappedTime":
        """Return the same for micro-batches in waves; see `CurvesInWaves`."""
        return OverlappedTime(self, lambda curves: CurvesInWaves(curves, alone))


class OverlappedTime:
    """Overlapped curves as the `TimeCurves` of `split_evenly_in_time`.

    The solver finds the level that all workers' times reach: OptPerf, without Cannikin's search for the
    workers whose bottleneck is communication (Alg. 1), and exactly over whole counts within bounds.
    """

    def __init__(
        self, curves: OverlappedCurves, equal_time: Callable[[Curves], EqualTime] = EqualTime
    ) -> None:
        self._computing, self._starts = equal_time(curves.computing), equal_time(curves.starts)
        self._last, self._communication = curves.last, curves.communication
        self._added: list[list[float]] = np.stack([curves.last, curves.communication], axis=1).tolist()

    def time(self, worker: int, count: float) -> float:
        """Return the seconds by one worker; see `TimeCurves.time`."""
        last, communication = self._added[worker]
        return max(
            self._computing.time(worker, count) + last, self._starts.time(worker, count) + communication
        )

    def fill(self, total: int, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return counts just below the best split; see `TimeCurves.fill`."""
        return fill_to_level(self.time, self.within, total, low, high)

    def within(self, level: float) -> Array:
        """Return the most units of each worker within a time in seconds, as real numbers; (workers,)."""
        return np.minimum(
            self._computing.within(level - self._last), self._starts.within(level - self._communication)
        )
