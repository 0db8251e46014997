"""ARX, the linear relative of NARX: the inputs of LB-BSP's equation 4, learned online, without fits."""

from collections.abc import Sequence

import numpy as np

from predictors.base import Array, Predictor, reindexed
from predictors.time_series import INPUTS, LAGS, SPEED, TimeSeries, inputs

_FEWEST = 12.0  # samples before the first prediction
_SPEED_FLOOR = 0.01  # of the mean speed; inputs that deviate less than this on average teach little
_USAGE_FLOOR = 0.02
_OUTLIER = 3.0  # times the usual error, from which a speed counts as an outlier


class Arx(Predictor):
    """Least squares over each worker's past, in which a sample's weight decays by `forgetting`.

    The regression is solved in each iteration from the weighted moments of inputs and speeds about their
    means. This is recursive least squares, but a ridge of constant size bounds the slopes however long an
    input stays constant. The prediction is NaN until there are a dozen samples.

    An outlier counts less (Huber's weights), and its speed is clipped before it becomes an input, unless
    the sample before it was an outlier on the same side: one is a spike, two are a change.

    Args:
        forgetting: Factor by which a sample's weight decays in each iteration; above 0, at most 1.
        ridge: Number added to the diagonal of the inputs' correlation matrix.
    """

    def __init__(self, forgetting: float = 0.995, ridge: float = 0.02) -> None:
        self._forgetting = forgetting
        self._ridge = ridge
        self._series = TimeSeries(LAGS)
        # Weighted sums over samples z = (1, inputs, speed that followed): (workers, 10, 10) of z z^T.
        self._moments = np.empty((0, 2 + len(INPUTS), 2 + len(INPUTS)))
        self._given = np.empty((0, len(INPUTS)))  # inputs of the next prediction
        self._predicted = np.empty(0)
        self._usual = np.empty(0)  # discounted mean of the errors' size; NaN before the first
        self._off = np.empty(0)  # side on which the last speed was an outlier: -1, 0, 1

    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Learn from one iteration; see `Predictor.observe`."""
        errors = speeds - self._predicted
        sizes = np.abs(errors)
        limit = np.maximum(_OUTLIER * self._usual, _SPEED_FLOOR * np.abs(self._predicted))
        far = sizes > limit  # false where NaN
        side = np.where(far, np.sign(errors), 0.0)
        lone = far & (side != self._off)
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.where(lone, limit / sizes, 1.0)
        self._off = np.where(np.isnan(speeds), self._off, side)
        cut = np.where(lone, self._predicted + side * limit, speeds)
        known = np.where(np.isnan(self._usual), sizes, self._usual)
        self._usual = np.where(np.isnan(sizes), self._usual, 0.95 * known + 0.05 * np.fmin(sizes, 2 * limit))

        self._learn(speeds, weights)
        self._series.append(cut, cpu_usage, memory_usage)
        if len(self._series) == LAGS:
            self._given = inputs(self._series.latest(LAGS))[0]
        self._predicted = self._forecast()

    def predict(self) -> Array:
        """Return the regression's speeds, (workers,); see `Predictor.predict`."""
        return self._predicted.copy()

    def _learn(self, speeds: Array, weights: Array) -> None:
        usable = np.isfinite(speeds) & np.isfinite(self._given).all(axis=1)
        sample = np.concatenate((np.ones((len(speeds), 1)), self._given, speeds[:, None]), axis=1)
        sample[~usable] = 0.0
        decay = np.where(usable, self._forgetting, 1.0)[:, None, None]
        outer = (sample * weights[:, None])[:, :, None] * sample[:, None, :]
        self._moments = decay * self._moments + outer

    def _forecast(self) -> Array:
        count = self._moments[:, 0, 0]
        ready = (count >= min(_FEWEST, 0.5 / (1 - self._forgetting))) & np.isfinite(self._given).all(axis=1)
        forecast = np.full(len(count), np.nan)
        if not ready.any():
            return forecast
        moments = self._moments[ready] / count[ready, None, None]
        means = moments[:, 0, 1:]
        covariance = moments[:, 1:, 1:] - means[:, :, None] * means[:, None, :]
        mean_speed = means[:, -1]
        floors = np.where(np.array(INPUTS) == SPEED, _SPEED_FLOOR * mean_speed[:, None], _USAGE_FLOOR)
        variances = np.einsum("wii->wi", covariance)[:, :-1]
        scale = 1 / np.sqrt(np.maximum(variances, 0.0) + floors**2)
        correlation = covariance[:, :-1, :-1] * scale[:, :, None] * scale[:, None, :]
        ridge = self._ridge + 1 / count[ready]
        correlation += ridge[:, None, None] * np.eye(len(INPUTS))
        target = covariance[:, :-1, -1] * scale
        slopes = np.linalg.solve(correlation, target[:, :, None])[:, :, 0] * scale
        forecast[ready] = mean_speed + (slopes * (self._given[ready] - means[:, :-1])).sum(axis=1)
        return forecast

    def _reindex(self, rows: Sequence[int | None]) -> None:
        self._series.reindex(rows)
        self._moments = reindexed(self._moments, rows, 0.0)
        self._given = reindexed(self._given, rows, np.nan)
        self._predicted = reindexed(self._predicted, rows, np.nan)
        self._usual = reindexed(self._usual, rows, np.nan)
        self._off = reindexed(self._off, rows, 0.0)
