"""The simplest predictor: the next iteration goes as the last (LB-BSP, section 3.2)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Memoryless:
    """Predicts the last speed that was measured."""

    def __init__(self) -> None:
        self._last = np.empty(0)

    def observe(
        self,
        speeds: NDArray[np.float64],
        cpu_usage: NDArray[np.float64],
        memory_usage: NDArray[np.float64],
    ) -> None:
        """Keep each measured speed; see `predictors.Predictor`."""
        self._last = np.where(np.isnan(speeds), self._last, speeds)

    def predict(self) -> NDArray[np.float64]:
        """The last measured speeds, (workers,)."""
        return self._last.copy()

    def reindex(self, rows: Sequence[int | None]) -> None:
        """See `predictors.Predictor`."""
        self._last = np.array([np.nan if row is None else self._last[row] for row in rows])
