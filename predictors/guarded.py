"""A guard that keeps any predictor from doing worse than the moving average."""

from collections.abc import Sequence

import numpy as np

from predictors.base import Array, Fit, Models, Predictor, Weights, reindexed
from predictors.ema import ExponentialMovingAverage

_TOLERANCE = 1.02  # of the moving average's root mean square error
_HEADROOM = 1.25  # times the fastest speed seen: the highest next speed for which the bound holds
_FORGET = 0.999  # per iteration, of the allowance that is left
_RECENT = 0.99  # per iteration, of the errors that are compared


class Guarded(Predictor):
    """The predictions of `inner` where these have proved better, else those of the moving average.

    For each worker, the sum of squared errors stays within 1.02^2 times that of the moving average, after
    every iteration, as long as no speed exceeds 1.25 times the fastest seen before. To this end each worker
    has an allowance, in squared speed: it grows by 1.02^2 times the average's squared error and shrinks by
    the prediction's. With an average of e and a prediction of e + d, a speed v costs (e + d - v)^2 -
    (e - v)^2 = d^2 + 2 d (e - v) more than with e alone. Speeds lie between 0 and 1.25 times the fastest, so
    |e - v| is at most some r on the side that hurts, and any |d| up to sqrt(r^2 + allowance) - r can be
    afforded. The inner prediction is clipped to that.

    The allowance decays slowly, so that what was gained long ago cannot be lost at once. Besides, the inner
    prediction is used only while its recent squared error is at most that of the moving average, and is
    clipped to the range of speeds seen so far. Where it is NaN, infinite, or not positive, the average is
    used.

    Args:
        inner: The predictor to guard; its predictions may be anything.
        models: Models of earlier runs, from which the moving average starts.
    """

    def __init__(self, inner: Predictor, models: Models | None = None) -> None:
        self._inner = inner
        self._average = ExponentialMovingAverage(models=models)
        self._predicted = np.empty(0)  # what `predict` returned, on which the costs depend
        self._safe = np.empty(0)  # the moving average's prediction
        self._tried = np.empty(0)  # the inner prediction, clipped to the range; NaN where it is no speed
        self._allowance = np.empty(0)
        self._lead = np.empty(0)  # discounted sum of the average's squared errors less the inner's
        self._slowest = np.empty(0)
        self._fastest = np.empty(0)

    def set_workers(self, workers: Sequence[str]) -> None:
        """Set the workers of the guarded predictor and of the average; see `Predictor.set_workers`."""
        self._inner.set_workers(workers)
        self._average.set_workers(workers)
        super().set_workers(workers)

    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Charge the allowance for the last prediction, and make the next; see `Predictor.observe`."""
        self._settle(speeds)
        self._inner.observe(speeds, cpu_usage, memory_usage)
        self._average.observe(speeds, cpu_usage, memory_usage)
        self._slowest = np.fmin(self._slowest, speeds)
        self._fastest = np.fmax(self._fastest, speeds)
        self._safe = self._average.predict()
        inner = self._inner.predict()
        inner[~(np.isfinite(inner) & (inner > 0))] = np.nan
        self._tried = np.clip(inner, self._slowest, self._fastest)
        self._predicted = self._safe + self._affordable()

    def predict(self) -> Array:
        """Return the speeds, (workers,); the same until the next iteration, even if a fit ends meanwhile."""
        return self._predicted.copy()

    def due_fit(self) -> Fit | None:
        """Return the guarded predictor's fit, if it has one to run."""
        return self._inner.due_fit()

    def take_fit(self, weights: Weights | None) -> None:
        """Pass a fit's result on to the guarded predictor; see `Predictor.take_fit`."""
        self._inner.take_fit(weights)

    def models(self) -> Models:
        """Return the guarded predictor's models and the moving average's."""
        return {**self._average.models(), **self._inner.models()}

    def _settle(self, speeds: Array) -> None:
        average, predicted, tried = ((speeds - p) ** 2 for p in (self._safe, self._predicted, self._tried))
        cost = np.where(np.isnan(average), 0.0, _TOLERANCE**2 * average - predicted)
        self._allowance = _FORGET * self._allowance + cost
        self._lead = _RECENT * self._lead + np.where(np.isnan(average - tried), 0.0, average - tried)

    def _affordable(self) -> Array:
        """Return the step from the average towards the inner prediction that is allowed, (workers,)."""
        wanted = np.where(np.isnan(self._tried) | (self._lead < 0), 0.0, self._tried - self._safe)
        worst = np.where(wanted > 0, self._safe, np.fmax(_HEADROOM * self._fastest - self._safe, 0.0))
        most = np.sqrt(worst**2 + np.maximum(self._allowance, 0.0)) - worst
        return np.clip(np.where(np.isnan(most), 0.0, wanted), -np.nan_to_num(most), np.nan_to_num(most))

    def _reindex(self, rows: Sequence[int | None]) -> None:
        self._safe = self._average.predict()
        self._predicted = reindexed(self._predicted, rows, np.nan)
        self._predicted = np.where(np.isnan(self._predicted), self._safe, self._predicted)
        self._tried = reindexed(self._tried, rows, np.nan)
        self._allowance = reindexed(self._allowance, rows, 0.0)
        self._lead = reindexed(self._lead, rows, 0.0)
        self._slowest = reindexed(self._slowest, rows, np.nan)
        self._fastest = reindexed(self._fastest, rows, np.nan)
