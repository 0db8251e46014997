"""What no predictor can take: the error names it, and what is allowed."""

import numpy as np
import pytest

from predictors import PREDICTORS, PredictorOptions, make_predictor
from predictors.arima import ArimaFit
from predictors.batch_sizes import forecast
from predictors.ema import ExponentialMovingAverage
from predictors.networks import NetworkFit
from tests.predictors.series import contended, replay

NAN = float("nan")


def resumed(name, weights):
    """A predictor with a worker's model of an earlier run."""
    return make_predictor(name, models={"narx" if name == "auto" else name: {"w7": weights}})


@pytest.fixture(scope="module")
def weights():
    """A NARX model."""
    predictor = make_predictor("narx", PredictorOptions(first_fit=40))
    replay(predictor, contended(5, iterations=40, workers=1))
    return predictor.models()["narx"]["w0"]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("output", np.full(10, np.nan), "output is not finite"),
        ("output", np.zeros(3), r"output has shape \(3,\), should have \(10,\)"),
        ("spread", np.zeros(3), "spread .* must be positive"),
    ],
)
def test_broken_saved_models_are_refused(weights, name, value, error):
    """The error names the predictor, the worker and the array."""
    with pytest.raises(ValueError, match=f"narx model of w9: {error}"):
        make_predictor("narx", models={"narx": {"w9": {**weights, name: value}}})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: make_predictor("emma"), "no predictor 'emma'; there are memoryless, ema"),
        (lambda: PredictorOptions(first_fit=19), "first_fit 19: must be at least"),
        (lambda: PredictorOptions(refit_every=0), "refit_every 0: must be at least"),
        (lambda: PredictorOptions(fit_window=19), "fit_window 19: must be at least"),
        (lambda: PredictorOptions(seed=-1), "seed -1: must be at least"),
        *(
            (lambda alpha=alpha: ExponentialMovingAverage(alpha), f"alpha {alpha}")
            for alpha in (0, -0.1, 1.1, NAN)
        ),
        *(
            (lambda average=average: resumed("ema", average), "ema model of w7")
            for average in ({}, {"speed": np.zeros(2)}, {"speed": np.array(NAN)})
        ),
        *(
            (
                lambda name=name: resumed(name, {"weights": np.zeros(3)}),
                r"model of w7: has \['weights'\], should have \[",
            )
            for name in PREDICTORS
            if name not in ("memoryless", "ema", "arx")
        ),
        (lambda: ArimaFit(np.full((60, 1), 5.0)).run(), "no worker's speeds could be fitted"),
        (lambda: NetworkFit("narx", [np.full((4, 2), NAN)] * 20, None, 0).run(), "no worker has 16 samples"),
        (lambda: forecast([], 1), r"values of shape \(0,\)"),
        (lambda: forecast([[4.0, 5.0]], 1), r"values of shape \(1, 2\)"),
        (lambda: forecast([4.0, NAN], 1), r"values \[4.0, nan\]: must be finite numbers from 0"),
        (lambda: forecast([4.0, -1.0], 1), r"values \[4.0, -1.0\]: must be finite numbers from 0"),
        (lambda: forecast([4.0], 0), "epochs 0: must be at least 1"),
        (lambda: forecast([4.0], 1, "oracle"), "forecaster 'oracle': there are last, "),
    ],
)
def test_what_no_predictor_can_take_is_named(make, said):
    """Options, saved models, and measurements of which nothing can be learned."""
    with pytest.raises(ValueError, match=said):
        make()
