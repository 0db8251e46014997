"""Forecasts of batch sizes: continued growth, the last value where nothing is known, and bad input."""

import itertools

import numpy as np
import pytest

from predictors.batch_sizes import FEWEST, FORECASTERS, forecast
from tests.scripts.light_and_run import PROJECT, name_of

MODELS = [name for name in FORECASTERS if name != "last"]
GROWING = 100 * 1.1 ** np.arange(12)  # 10% an epoch
NOISY = GROWING * np.exp(0.02 * np.random.default_rng(3).standard_normal(12))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("values", [GROWING, NOISY], ids=["exact", "noisy"])
def test_growth_is_continued(name, values):
    """Where a series grows by 10% an epoch, forecasts err by less than two thirds of the growth."""
    truth = 100 * 1.1**12
    (expected,) = forecast(values, 1, name)

    assert abs(expected / truth - 1) < 2 / 3 * abs(GROWING[-1] / truth - 1)


def test_the_trend_is_damped():
    """Each epoch adds 0.8 times what the epoch before has added to the logarithm."""
    logs = np.log(forecast(NOISY, 6, "exponential-smoothing"))
    steps = np.diff(logs)

    assert steps[0] > 0.01
    assert steps[1:] / steps[:-1] == pytest.approx([0.8] * 4)


def test_the_process_returns_to_the_last_value():
    """Hundreds of epochs on, nothing is known of the growth."""
    expected = forecast(NOISY, 3000, "gaussian-process")

    assert expected[-1] == pytest.approx(NOISY[-1], rel=0.01)
    assert abs(expected[0] / NOISY[-1] - 1) > 0.01


def test_the_mean_is_of_logarithms():
    """The mean's forecast is the geometric mean of the models'."""
    process, smoothing, mean = (
        forecast(NOISY, 5, name) for name in ("gaussian-process", "exponential-smoothing", "mean")
    )

    assert mean == pytest.approx(np.sqrt(process * smoothing))
    assert (process != smoothing).all()


@pytest.mark.parametrize("name", FORECASTERS)
def test_too_few_values_give_the_last(name):
    """Up to the fewest that can be fitted, the last value is the forecast."""
    for count in range(1, FEWEST):
        assert forecast(GROWING[:count], 3, name) == pytest.approx([GROWING[count - 1]] * 3)


@pytest.mark.parametrize("name", FORECASTERS)
def test_a_constant_stays(name):
    """A batch size that never changed is forecast to stay, of whatever size it is."""
    for value in (1, 256, 1e7):
        assert forecast(np.full(10, value), 4, name) == pytest.approx([value] * 4)


@pytest.mark.parametrize("name", FORECASTERS)
def test_no_forecast_is_below_a_sample(name):
    """A fast decline ends at 1, also from values below it."""
    expected = forecast(10.0 ** np.arange(5, -4, -1), 20, name)

    assert expected.shape == (20,)
    assert (expected >= 1).all()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("factor", [0.1, 10.0], ids=["fall", "rise"])
def test_no_forecast_is_farther_than_a_factor_of_two(name, factor):
    """A series that changes tenfold an epoch is forecast to halve or to double, and no more."""
    values = 1e9 * factor ** np.arange(6.0)
    expected = forecast(values, 5, name) / values[-1]

    assert expected[-1] == pytest.approx(2 if factor > 1 else 0.5)
    assert ((expected >= 0.4999) & (expected <= 2.0001)).all()


@pytest.mark.parametrize("name", FORECASTERS)
def test_the_unit_does_not_matter(name):
    """A thousand times the values have a thousand times the forecast."""
    assert forecast(1000 * NOISY, 5, name) == pytest.approx(1000 * forecast(NOISY, 5, name), rel=1e-3)


@pytest.mark.parametrize("name", FORECASTERS)
def test_steep_series_have_finite_forecasts(name):
    """Jumps by factors of a million, in any order, are no reason to fail."""
    for order in itertools.permutations([1.0, 1e6, 1e12, 1e12]):
        assert np.isfinite(forecast(np.array(order), 5, name)).all()


def test_a_managers_installation_can_forecast():
    """The extra of the services names the libraries that fit."""
    extra = {name_of(one) for one in PROJECT["optional-dependencies"]["manager"]}

    assert {"scikit-learn", "statsmodels"} <= extra
