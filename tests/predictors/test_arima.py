"""ARIMA: fitted by statsmodels, predicted by recursion."""

import numpy as np
import pytest

from predictors import PredictorOptions
from predictors.arima import Arima, ArimaFit
from tests.predictors.series import contended, replay

OPTIONS = PredictorOptions(first_fit=100, refit_every=1000, fit_window=200)


def test_the_recursion_agrees_with_statsmodels():
    """Forecasts are those that statsmodels makes with the same parameters, for each worker."""
    from statsmodels.tsa.arima.model import ARIMA

    series = contended(3, iterations=190, workers=2)
    weights = {"ar": np.array([0.3, -0.2]), "ma": np.array([-0.6])}
    predictor = Arima(OPTIONS, {"arima": {"w0": weights}})
    replay(predictor, series, fit=lambda fit: None)
    params = [*weights["ar"], *weights["ma"], 1.0]
    theirs = [ARIMA(s, order=(2, 2, 1)).filter(params).forecast(1)[0] for s in series.speeds.T]

    assert predictor.predict() == pytest.approx(theirs, rel=1e-3)


def test_what_cannot_be_fitted_is_left_out():
    """A constant speed and a newcomer get no parameters."""
    good = contended(5, iterations=60, workers=1).speeds
    constant = np.full((60, 1), 5.0)
    new = np.where(np.arange(60)[:, None] < 50, np.nan, good)
    found = ArimaFit(np.hstack((constant, good, new))).run()

    assert np.isfinite(found["ma"][:, 0]).tolist() == [False, True, False]
