"""Predict each worker's sample-processing speed in the next iteration.

To add a predictor, write a module with a subclass of `Predictor` and name it in `PREDICTORS`. Forecasts of
batch sizes are something else, and in `predictors.batch_sizes`.
"""

from collections.abc import Callable

from predictors.arima import Arima
from predictors.arx import Arx
from predictors.base import Array, DeviceKind, Fit, ModelKey, Models, Predictor, PredictorOptions, Weights
from predictors.blend import Blend
from predictors.ema import ExponentialMovingAverage
from predictors.guarded import Guarded
from predictors.memoryless import Memoryless
from predictors.networks import Network, missing


def _auto(options: PredictorOptions, models: Models) -> Predictor:
    members: list[Predictor] = [
        ExponentialMovingAverage(models=models),
        Memoryless(),
        Arx(),
    ]
    if not missing():
        members.append(Network("narx", options, models))
    return Guarded(Blend(members), models)


PREDICTORS: dict[str, Callable[[PredictorOptions, Models], Predictor]] = {
    "memoryless": lambda options, models: Memoryless(),
    "ema": lambda options, models: ExponentialMovingAverage(models=models),
    "arima": lambda options, models: Guarded(Arima(options, models), models),
    "simple_rnn": lambda options, models: Guarded(Network("simple_rnn", options, models), models),
    "lstm": lambda options, models: Guarded(Network("lstm", options, models), models),
    "narx": lambda options, models: Guarded(Network("narx", options, models), models),
    "arx": lambda options, models: Guarded(Arx(), models),
    "auto": _auto,
}


def make_predictor(
    name: str, options: PredictorOptions | None = None, models: Models | None = None
) -> Predictor:
    """Make a new predictor.

    Args:
        name: A name in `PREDICTORS`.
        options: When, and on how much, predictors that learn make their fits.
        models: Fitted models of earlier runs, from which predictors that learn start.

    Raises:
        ValueError: There is no such predictor, a package that it needs is not installed, or the arrays of the
            models have other shapes.
    """
    if name not in PREDICTORS:
        raise ValueError(f"no predictor {name!r}; there are {', '.join(PREDICTORS)}")
    return PREDICTORS[name](options or PredictorOptions(), {} if models is None else models)


__all__ = [
    "PREDICTORS",
    "Array",
    "DeviceKind",
    "Fit",
    "ModelKey",
    "Models",
    "Predictor",
    "PredictorOptions",
    "Weights",
    "make_predictor",
    "missing",
]
