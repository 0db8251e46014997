"""The simplest predictor: the next iteration goes as the last (LB-BSP, section 3.2)."""

from collections.abc import Sequence

import numpy as np

from predictors.base import Array, Predictor


class Memoryless(Predictor):
    """Predicts the last speed that was measured."""

    def __init__(self) -> None:
        self._last = np.empty(0)

    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Keep each measured speed; see `Predictor`."""
        self._last = np.where(np.isnan(speeds), self._last, speeds)

    def predict(self) -> Array:
        """The last measured speeds, (workers,)."""
        return self._last.copy()

    def _reindex(self, rows: Sequence[int | None]) -> None:
        self._last = np.array([np.nan if row is None else self._last[row] for row in rows])
