"""ARIMA(2,2,1) on the speeds alone (LB-BSP, section 5.4): fitted by statsmodels, predicted by recursion."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictors.base import Array, Fit, Models, PredictorOptions, Weights
from predictors.learner import FEWEST, Learner
from predictors.time_series import SPEED

_SHAPES = {"ar": (2,), "ma": (1,)}
_INVERTIBLE = 0.98  # largest size of the moving average's weight: beyond 1, shocks would grow for ever
_REPLAY = 200  # iterations; what a shock before them still does is less than 2% of it


@dataclass(frozen=True)
class ArimaFit:
    """A fit of each worker's ARIMA parameters."""

    # The speeds of each iteration, (workers,); NaN before a worker's first measurement.
    speeds: Sequence[Array]

    def run(self) -> Weights:
        """Fit by maximum likelihood; NaN for workers with too few speeds, or speeds without a likelihood.

        Raises:
            ValueError: No worker's speeds could be fitted.
        """
        from statsmodels.tsa.arima.model import ARIMA  # takes seconds to import

        by_worker = np.stack(self.speeds, axis=1)  # (workers, iterations)
        workers = len(by_worker)
        found = {"ar": np.full((workers, 2), np.nan), "ma": np.full((workers, 1), np.nan)}
        for worker, speeds in enumerate(by_worker):
            series = speeds[np.isfinite(speeds)]
            if len(series) < FEWEST or np.ptp(np.diff(series, 2)) <= 1e-9 * series.mean():
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the best so far is good enough, and the guard watches it
                try:
                    model = ARIMA(series / series.mean(), order=(2, 2, 1))
                    params = model.fit(method="innovations_mle", cov_type="none").params
                except (ValueError, np.linalg.LinAlgError):
                    continue
            if np.isfinite(params).all():
                found["ar"][worker] = params[:2]
                found["ma"][worker] = np.clip(params[2], -_INVERTIBLE, _INVERTIBLE)
        if not np.isfinite(found["ma"]).any():
            raise ValueError("no worker's speeds could be fitted")
        return found


class Arima(Learner):
    """ARIMA on each worker's speeds, with parameters that are fitted now and then.

    With w = the second differences of speed, w^(k+1) = a1 w^k + a2 w^(k-1) + b e^k, where e^k is the last
    error. The parameters have no unit, so they suit workers of any speed.

    Args:
        options: When to fit, and on how much.
        models: Earlier models to start from; see `Learner`.
    """

    def __init__(self, options: PredictorOptions, models: Models) -> None:
        super().__init__("arima", _SHAPES, options, models)
        self._shocks = np.empty(0)  # (workers,): e^k

    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Add one iteration and work out the prediction error in it; see `Predictor.observe`."""
        super().observe(speeds, cpu_usage, memory_usage)
        self._shocks = self._shocks_after(self._shocks, self.series.latest(5)[:, SPEED])

    def take_fit(self, weights: Weights | None) -> None:
        """Use the fitted parameters; see `Predictor.take_fit`."""
        super().take_fit(weights)
        self._replay()

    def _reindex(self, rows: Sequence[int | None]) -> None:
        super()._reindex(rows)
        self._replay()

    def _make_fit(self, start: Weights | None) -> Fit:
        return ArimaFit([row[SPEED] for row in self.series.rows(self.options.fit_window)])

    def _forecast(self, weights: Weights) -> Array:
        speeds = self.series.latest(4)[:, SPEED]
        if len(speeds) < 4:
            return np.full(len(self.workers), np.nan)
        difference = self._expected(np.diff(speeds, 2, axis=0), self._shocks)
        forecast: Array = difference + 2 * speeds[-1] - speeds[-2]
        return forecast

    def _expected(self, differences: Array, shocks: Array) -> Array:
        """Return the second difference expected after the last two, (2, workers)."""
        ar, ma = self._current["ar"], self._current["ma"]
        expected: Array = ar[:, 0] * differences[1] + ar[:, 1] * differences[0] + ma[:, 0] * shocks
        return expected

    def _shocks_after(self, shocks: Array, speeds: Array) -> Array:
        """Return the errors in the last of five iterations' speeds, (5, workers), given the errors before."""
        if not self._current or len(speeds) < 5:
            return np.zeros(speeds.shape[1])
        differences = np.diff(speeds, 2, axis=0)
        after: Array = np.nan_to_num(differences[2] - self._expected(differences[:2], shocks))
        return after

    def _replay(self) -> None:
        """Compute the errors of the past again, as the present parameters would have made them."""
        speeds = self.series.latest(_REPLAY)[:, SPEED]
        self._shocks = np.zeros(len(self.workers))
        for end in range(5, len(speeds) + 1):
            self._shocks = self._shocks_after(self._shocks, speeds[end - 5 : end])
