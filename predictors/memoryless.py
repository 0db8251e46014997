"""The simplest predictor: the next speed is the last one (LB-BSP, section 3.2.2)."""

from collections.abc import Sequence

import numpy as np

from predictors.base import Array, Predictor


class Memoryless(Predictor):
    """The last speed that was measured of each worker."""

    def __init__(self) -> None:
        self._last = np.empty(0)

    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Keep each measured speed; see `Predictor.observe`."""
        self._last = np.where(np.isnan(speeds), self._last, speeds)

    def predict(self) -> Array:
        """Return the last measured speeds, (workers,); see `Predictor.predict`."""
        return self._last.copy()

    def _reindex(self, rows: Sequence[int | None]) -> None:
        self._last = np.array([np.nan if row is None else self._last[row] for row in rows])
