"""ARX: a regression that is learned online."""

import numpy as np
import pytest

from predictors.arx import Arx
from tests.predictors.series import Series, replay


def test_it_finds_a_linear_law():
    """Speeds that are 100 (1 - c) with the current usage are predicted to 2% after 200 iterations."""
    cpu = np.random.default_rng(0).uniform(0, 0.9, (300, 2))
    speeds = 100 * (1 - np.vstack((cpu[:1], cpu[:-1])))
    predicted = replay(Arx(), Series(speeds, cpu, 0 * cpu, speeds))

    assert np.abs(predicted[200:] - speeds[200:]).max() < 2


def test_a_spike_is_not_followed():
    """One iteration at half the speed moves the prediction by less than a tenth."""
    rng = np.random.default_rng(0)
    speeds = 100 * (1 + 0.02 * rng.standard_normal((200, 1)))
    idle = np.zeros(speeds.shape)
    predictor = Arx()
    replay(predictor, Series(speeds, idle, idle, speeds))
    predictor.observe(np.array([50.0]), np.zeros(1), np.zeros(1))

    assert predictor.predict() == pytest.approx([100], abs=10)


@pytest.mark.slow
def test_inputs_that_stand_still_do_no_harm():
    """A change after 5,000 constant iterations is predicted as sanely as one after few."""
    predictor = Arx()
    steady = np.full((5000, 1), 70.0)
    replay(predictor, Series(steady, steady * 0, steady * 0 + 0.3, steady))
    assert predictor.predict() == pytest.approx([70.0])

    predictor.observe(np.array([70.0]), np.array([0.9]), np.array([0.9]))
    assert predictor.predict() == pytest.approx([70.0], rel=0.01)
