"""Forecasts of a job's batch size, or noise scale, in its next epochs (JABAS, section 6.2).

Arrays in, arrays out. This module must not know what is done with a forecast, or where the values are from. A
batch size that is chosen in proportion to the noise scale has the relative errors of the noise scale's
forecast.

All forecasters work on logarithms: the values grow by factors, and their errors are relative. To add one,
write a function from the logarithms of the epochs so far, (values,), and a number of epochs to the logarithms
expected in these, and name it in `FORECASTERS`.
"""

import math
import warnings
from collections.abc import Callable

import numpy as np

from predictors.base import Array

FEWEST = 4
"""Values that a fit needs; of fewer, or where a fit fails, the last value is the forecast."""

_WINDOW = 20  # epochs; what was before says little of the next, and a fit takes longer with it
_LIMIT = math.log(2.0)  # from the last value, either way: one wild value makes the models rise a thousandfold
_DAMPING = 0.8  # of the trend, per epoch: an undamped one of few noisy epochs explodes within five


def forecast(values: Array, epochs: int, forecaster: str = "mean") -> Array:
    """Forecast the values of the next epochs, (epochs,).

    None is below 1, less than half of the last value, or more than twice as much.

    Args:
        values: Batch sizes or noise scales of the epochs so far, (values,), in samples, at least one; those
            below 1 count as 1.
        epochs: How many epochs to forecast, from 1.
        forecaster: Name in `FORECASTERS`.

    Raises:
        ValueError: There are no values, one is negative or not finite, there are no epochs, or no such
            forecaster.
    """
    if forecaster not in FORECASTERS:
        raise ValueError(f"forecaster {forecaster!r}: there are {', '.join(FORECASTERS)}")
    if epochs < 1:
        raise ValueError(f"epochs {epochs}: must be at least 1")
    series = np.asarray(values, float)
    if series.ndim != 1 or not len(series):
        raise ValueError(f"values of shape {series.shape}: give a value for each epoch so far")
    if not (np.isfinite(series) & (series >= 0)).all():
        raise ValueError(f"values {series.tolist()}: must be finite numbers from 0")
    logs = np.log(np.maximum(series, 1.0))[-_WINDOW:]
    expected = np.clip(FORECASTERS[forecaster](logs, epochs), logs[-1] - _LIMIT, logs[-1] + _LIMIT)
    return np.exp(np.maximum(expected, 0.0))


def _last(logs: Array, epochs: int) -> Array:
    """Return the last value for each epoch."""
    return np.full(epochs, logs[-1])


def _gaussian_process(logs: Array, epochs: int) -> Array:
    """Return the mean of a Gaussian process over epochs.

    Its kernel is a Matérn of ν = 3/2 and white noise, both fitted by maximum likelihood. The prior mean is
    the last value, to which forecasts return: with the average, those of a growing series would fall.
    """
    if _tells_nothing(logs):
        return _last(logs, epochs)
    from sklearn.gaussian_process import GaussianProcessRegressor  # takes seconds to import
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    # Lengths are in tens of epochs, from 2 epochs on; variances are those of logarithms.
    smooth = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(1.0, (0.2, 1e2), nu=1.5)
    model = GaussianProcessRegressor(smooth + WhiteKernel(0.01, (1e-5, 1.0)))
    times = np.arange(len(logs) + epochs)[:, None] / 10  # (values + epochs, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parameters at their bounds
        try:
            model.fit(times[: len(logs)], logs - logs[-1])
            expected = logs[-1] + model.predict(times[len(logs) :])
        except np.linalg.LinAlgError:
            return _last(logs, epochs)
    return _finite(expected, logs)


def _exponential_smoothing(logs: Array, epochs: int) -> Array:
    """Return forecasts of Holt's exponential smoothing with a damped trend, which begins at 0.

    Without a trend the forecast would be a flat line, whatever the series does. The weights of level and
    trend are fitted by least squares.
    """
    if _tells_nothing(logs):
        return _last(logs, epochs)
    from statsmodels.tsa.holtwinters import Holt  # takes seconds to import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best so far is good enough
        try:
            model = Holt(
                logs,
                damped_trend=True,
                initialization_method="known",
                initial_level=logs[0],
                initial_trend=0.0,
            )
            expected = np.asarray(model.fit(damping_trend=_DAMPING).forecast(epochs), float)
        except (ValueError, np.linalg.LinAlgError):
            return _last(logs, epochs)
    return _finite(expected, logs)


def _mean(logs: Array, epochs: int) -> Array:
    """Return the mean of both models, which is a geometric mean of values."""
    return (_gaussian_process(logs, epochs) + _exponential_smoothing(logs, epochs)) / 2


def _tells_nothing(logs: Array) -> bool:
    """Return whether values are too few to fit, or all the same."""
    return len(logs) < FEWEST or bool(np.ptp(logs) < 1e-9)


def _finite(expected: Array, logs: Array) -> Array:
    return expected if np.isfinite(expected).all() else _last(logs, len(expected))


FORECASTERS: dict[str, Callable[[Array, int], Array]] = {
    "last": _last,
    "gaussian-process": _gaussian_process,
    "exponential-smoothing": _exponential_smoothing,
    "mean": _mean,
}
"""Forecasters by name; `mean` is JABAS's."""
