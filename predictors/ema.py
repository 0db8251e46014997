"""Exponential moving average of the measured speeds (LB-BSP, section 5.4, with a factor of 0.2)."""

from collections.abc import Sequence

import numpy as np

from predictors.base import Array, ModelKey, Models, Predictor, Weights, reindexed
from predictors.learner import check_weights

_SHAPES: dict[str, tuple[int, ...]] = {"speed": ()}


class ExponentialMovingAverage(Predictor):
    """The weighted mean of the past, in which a measurement's weight decays by 1 - `alpha`.

    The weights are normalised by their sum, so the first measurements, which are often slow, do not
    outweigh what follows: after k of them the latest has weight alpha / (1 - (1 - alpha)^k).

    Args:
        alpha: Weight of the latest measurement, above 0 and at most 1.
        models: Earlier averages, under "ema" by worker. That of a worker that joins counts as its first
            measurement, so that it is soon forgotten if the worker's speed is another now.

    Raises:
        ValueError: `alpha` is out of its range, or a saved model is not a finite average.
    """

    def __init__(self, alpha: float = 0.2, models: Models | None = None) -> None:
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha {alpha}: must be above 0 and at most 1")
        self._alpha = alpha
        self._earlier = {} if models is None else models.get("ema", {})
        for worker, weights in self._earlier.items():
            check_weights(f"ema model of {worker}", _SHAPES, weights)
        self._sums = np.empty(0)  # (workers,) of weight times speed
        self._weights = np.empty(0)  # (workers,)

    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Add each measured speed to its worker's average; see `Predictor.observe`."""
        measured = ~np.isnan(speeds)
        keep = 1 - self._alpha
        self._sums[measured] = keep * self._sums[measured] + self._alpha * speeds[measured]
        self._weights[measured] = keep * self._weights[measured] + self._alpha

    def predict(self) -> Array:
        """Return the averages, (workers,); see `Predictor.predict`."""
        with np.errstate(invalid="ignore"):
            return self._sums / self._weights  # 0 / 0 is NaN: never measured

    def models(self) -> Models:
        """Return each worker's average, under "ema"; see `Predictor.models`."""
        averages = zip(self.workers, self.predict(), strict=True)
        known: dict[ModelKey, Weights] = {
            worker: {"speed": np.array(speed)} for worker, speed in averages if np.isfinite(speed)
        }
        return {"ema": known} if known else {}

    def _reindex(self, rows: Sequence[int | None]) -> None:
        self._sums = reindexed(self._sums, rows, 0.0)
        self._weights = reindexed(self._weights, rows, 0.0)
        for row, (worker, old) in enumerate(zip(self.workers, rows, strict=True)):
            if old is None and (earlier := self._earlier.get(worker)) is not None:
                self._sums[row], self._weights[row] = self._alpha * float(earlier["speed"]), self._alpha
