"""Predict each worker's sample-processing speed in the next iteration.

A predictor takes and gives arrays, for all workers of a job at once, and does no input or output of its
own. To add one, write a module with a class that satisfies `Predictor` and name it in `PREDICTORS`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from predictors.ema import ExponentialMovingAverage
from predictors.memoryless import Memoryless

Array = NDArray[np.float64]


class Predictor(Protocol):
    """What every predictor does. Rows stand for workers; speeds are in samples per second."""

    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Take in one iteration's measurements.

        Args:
            speeds: (workers,); NaN where a worker had no samples.
            cpu_usage: (workers,), from 0 to 1.
            memory_usage: (workers,), from 0 to 1.
        """

    def predict(self) -> Array:
        """The speeds expected in the next iteration, (workers,); NaN for a worker never observed."""

    def reindex(self, rows: Sequence[int | None]) -> None:
        """The workers have changed.

        Args:
            rows: For each worker from now on, the row it had, or None for a new one.
        """


PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "memoryless": Memoryless,
    "ema": ExponentialMovingAverage,
}
