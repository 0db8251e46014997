"""Exponential moving average of the measured speeds (LB-BSP, section 5.3, with a factor of 0.2)."""

from collections.abc import Sequence

import numpy as np

from predictors.base import Array, Predictor


class ExponentialMovingAverage(Predictor):
    """Predicts the weighted mean of the past, in which a measurement's weight decays by 1 - `alpha`.

    The weights are normalised by their sum, so the first measurements, which are often slow, do not
    outweigh what follows: after k of them the latest has weight alpha / (1 - (1 - alpha)^k).

    Args:
        alpha: Weight of the latest measurement, above 0 and at most 1.

    Raises:
        ValueError: `alpha` is out of its range.
    """

    def __init__(self, alpha: float = 0.2) -> None:
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha {alpha}: must be above 0 and at most 1")
        self._alpha = alpha
        self._sums = np.empty(0)  # (workers,) of weight times speed
        self._weights = np.empty(0)  # (workers,)

    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Average each measured speed in; see `Predictor`."""
        measured = ~np.isnan(speeds)
        keep = 1 - self._alpha
        self._sums[measured] = keep * self._sums[measured] + self._alpha * speeds[measured]
        self._weights[measured] = keep * self._weights[measured] + self._alpha

    def predict(self) -> Array:
        """The averages, (workers,)."""
        with np.errstate(invalid="ignore"):
            return self._sums / self._weights  # 0 / 0 is NaN: never measured

    def _reindex(self, rows: Sequence[int | None]) -> None:
        self._sums = np.array([0.0 if row is None else self._sums[row] for row in rows])
        self._weights = np.array([0.0 if row is None else self._weights[row] for row in rows])
