"""Predict each worker's sample-processing speed in the next iteration.

To add a predictor, write a module with a subclass of `Predictor` and name it in `PREDICTORS`.
"""

from collections.abc import Callable

from predictors.base import Array, Fit, Models, Predictor, PredictorOptions, Weights
from predictors.ema import ExponentialMovingAverage
from predictors.memoryless import Memoryless

PREDICTORS: dict[str, Callable[[PredictorOptions, Models], Predictor]] = {
    "memoryless": lambda options, models: Memoryless(),
    "ema": lambda options, models: ExponentialMovingAverage(),
}


def make_predictor(
    name: str, options: PredictorOptions | None = None, models: Models | None = None
) -> Predictor:
    """A new predictor.

    Args:
        name: A name in `PREDICTORS`.
        options: For those that learn.
        models: What earlier runs have learnt, for those that learn to start from.

    Raises:
        ValueError: There is no such predictor, or the models are not of the right shape.
    """
    if name not in PREDICTORS:
        raise ValueError(f"no predictor {name!r}; there are {', '.join(PREDICTORS)}")
    return PREDICTORS[name](options or PredictorOptions(), models or {})


__all__ = [
    "PREDICTORS",
    "Array",
    "Fit",
    "Models",
    "Predictor",
    "PredictorOptions",
    "Weights",
    "make_predictor",
]
