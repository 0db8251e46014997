"""The blend: predictors weighted by their recent errors."""

import numpy as np
import pytest

from predictors import PredictorOptions, make_predictor
from predictors.blend import Blend
from predictors.ema import ExponentialMovingAverage
from predictors.memoryless import Memoryless
from predictors.networks import Network
from tests.predictors.series import contended, replay, rmse


def test_equal_members_are_averaged():
    """Members count the same before anything is known of their errors."""
    blend = Blend([ExponentialMovingAverage(), Memoryless()])
    blend.set_workers(["w0"])
    for speed in (10.0, 20.0):  # both predict 10 after the first
        blend.observe(np.array([speed]), np.zeros(1), np.zeros(1))

    assert blend.predict() == pytest.approx([(28 / 1.8 + 20) / 2])


def test_the_better_member_prevails():
    """The average prevails for noise about a constant, the last speed for a staircase."""
    rng = np.random.default_rng(0)
    steps = np.repeat(rng.uniform(10, 100, 30), 10)
    noise = 50 + 5 * rng.standard_normal(300)
    blend = Blend([ExponentialMovingAverage(), Memoryless()])
    blend.set_workers(["noise", "steps"])
    average = ExponentialMovingAverage()
    average.set_workers(["noise", "steps"])
    for row in np.stack((noise, steps), axis=1):
        for predictor in (blend, average):
            predictor.observe(row, np.zeros(2), np.zeros(2))

    assert blend.predict()[0] == pytest.approx(average.predict()[0], rel=0.01)
    assert blend.predict()[1] == pytest.approx(steps[-1], rel=0.01)


def test_one_members_fit_runs_at_a_time():
    """Two members that are due hand out their fits in turn, and each is given its own result."""
    options = PredictorOptions(first_fit=20, refit_every=1000)
    blend = Blend([Network(name, options, {}) for name in ("narx", "lstm")])
    series = contended(1, iterations=20, workers=1)
    names = []

    def fit(fit):
        names.append(fit.network)
        assert blend.due_fit() is None
        return fit.run()

    replay(blend, series, fit)

    assert names == ["narx", "lstm"]
    assert blend.models().keys() == {"narx", "lstm"}


@pytest.mark.ci
def test_auto_closes_half_the_gap():
    """The predictor auto closes half the gap from the average to the noise floor where others contend."""
    series = contended(4)
    average, auto = (rmse(replay(make_predictor(name), series), series) for name in ("ema", "auto"))
    floor = rmse(series.expected, series)

    assert average.sum() - auto.sum() >= 0.5 * (average.sum() - floor.sum())
    assert (auto <= 1.02 * average).all()
