"""The guard: no predictor does worse than the moving average."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.base import Predictor
from predictors.ema import ExponentialMovingAverage
from predictors.guarded import Guarded
from tests.predictors.series import Series, contended, replay


class Scripted(Predictor):
    """A predictor that predicts given rows, one after the other."""

    def __init__(self, rows):
        self._rows = iter(rows)
        self._next = np.empty(0)

    def observe(self, speeds, cpu_usage, memory_usage):
        """Go on to the next row."""
        self._next = np.array(next(self._rows), dtype=float)

    def predict(self):
        """Return the row."""
        return self._next.copy()

    def _reindex(self, rows):
        self._next = np.full(len(rows), np.nan)


def series_of(speeds):
    """Return a series of these speeds, (iterations, workers), with idle CPUs and memory."""
    speeds = np.array(speeds, dtype=float)
    idle = np.zeros(speeds.shape)
    return Series(speeds, idle, idle, speeds)


def squares(predicted, series):
    """Return the sums of squared errors up to each iteration."""
    return np.nancumsum((predicted - series.speeds) ** 2, axis=0)


ANYTHING = st.one_of(st.floats(0.0, 50.0), st.floats(allow_nan=True, allow_infinity=True))
STEPS = st.lists(st.tuples(st.floats(0.1, 20.0), ANYTHING), min_size=2, max_size=60)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 1.25), ANYTHING), min_size=2, max_size=60))
def test_never_worse_than_the_average(steps):
    """RMSE is within 2% of the average's after every iteration, whatever is predicted.

    Each speed may be a quarter above the fastest before.
    """
    speeds = [20.0]
    for factor, _ in steps:
        speeds.append(factor * max(speeds))
    series = series_of([(speed,) for speed in speeds])
    guarded = replay(Guarded(Scripted([(20.0,), *((p,) for _, p in steps)])), series)
    average = replay(ExponentialMovingAverage(), series)

    assert (squares(guarded, series) <= 1.02**2 * squares(average, series) * (1 + 1e-9) + 1e-9).all()


def alternating(right, wrong, steady=0):
    """Guard a predictor that is right, then always wrong, of a worker at 10 and 20 samples/s by turns.

    Args:
        right: Iterations in which it is right.
        wrong: Iterations after them in which it predicts the last speed, and so the wrong one.
        steady: Iterations between these, at 15, which it predicts.

    Returns:
        The guarded and the average's predictions, (iterations,) each, and the predictor's own.
    """
    turns = [10.0, 20.0] * (right // 2)
    series = series_of([(speed,) for speed in (*turns, *[15.0] * steady, *[10.0, 20.0] * (wrong // 2))])
    script = np.roll(series.speeds, -1, axis=0)
    script[right + steady - 1 :] = np.array([20.0, 10.0] * (wrong // 2 + 1))[: wrong + 1, None]
    guarded = replay(Guarded(Scripted(script)), series)
    return guarded[:, 0], replay(ExponentialMovingAverage(), series)[:, 0], np.roll(script[:, 0], 1)


def test_a_predictor_that_was_right_for_long_is_soon_dropped_when_wrong():
    """Being right a thousand iterations ago does not excuse the last hundred errors."""
    guarded, average, own = alternating(right=1000, wrong=200)
    assert guarded[1000] == own[1000] != average[1000]
    assert guarded[1100:] == pytest.approx(average[1100:])


def test_what_was_gained_long_ago_cannot_be_lost_at_once():
    """A prediction after thousands of uninformative iterations is followed only in part."""
    guarded, average, own = alternating(right=40, wrong=2)
    assert guarded[40] == own[40] != average[40]
    guarded, average, own = alternating(right=40, wrong=2, steady=5000)
    assert average[-2] == pytest.approx(15.0)
    assert 0 < guarded[-2] - average[-2] < 0.5 * (own[-2] - average[-2])


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(0.2, 3.0), st.integers(2, 100))
def test_never_worse_than_the_average_where_it_was_good(seed, wrong, good):
    """A predictor that is perfect, then constantly wrong, loses no more than it has gained."""
    series = contended(seed, iterations=200, workers=2)
    script = np.roll(series.speeds, -1, axis=0)
    script[good:] = wrong * series.speeds[0]
    first_is_fastest = series.speeds.max(axis=0)
    series.speeds[0] = first_is_fastest
    guarded = replay(Guarded(Scripted(script)), series)
    average = replay(ExponentialMovingAverage(), series)

    assert (squares(guarded, series) <= 1.02**2 * squares(average, series) * (1 + 1e-12)).all()


@settings(deadline=None)
@given(STEPS)
def test_predictions_are_speeds(steps):
    """Only finite, positive predictions within the range of the speeds come out."""
    speeds = np.array([[speed] for speed, _ in steps])
    predicted = replay(Guarded(Scripted([(p,) for _, p in steps])), series_of(speeds))[1:, 0]

    assert (predicted >= np.minimum.accumulate(speeds)[:-1, 0] * (1 - 1e-12)).all()
    assert (predicted <= np.maximum.accumulate(speeds)[:-1, 0] * (1 + 1e-12)).all()


def test_each_worker_is_judged_alone():
    """One worker's good predictions are used while the average stands in for the other's bad ones."""
    series = contended(2, iterations=400, workers=2)
    script = np.roll(series.speeds, -1, axis=0)
    script[:, 1] = 2.5 * script[:, 1]
    guarded = replay(Guarded(Scripted(script)), series)
    average = replay(ExponentialMovingAverage(), series)

    assert guarded[300:, 1] == pytest.approx(average[300:, 1])
    assert guarded[300:-1, 0] == pytest.approx(series.speeds[300:-1, 0], rel=0.01)


def test_what_was_predicted_stands_until_the_next_iteration():
    """Neither a second call nor workers that move change a prediction."""
    series = contended(3, iterations=100, workers=3)
    predictor = Guarded(Scripted(np.roll(series.speeds, -1, axis=0)))
    replay(predictor, series)
    before = predictor.predict()
    predictor.set_workers(["w2", "w0", "new"])

    assert np.array_equal(predictor.predict(), [before[2], before[0], np.nan], equal_nan=True)


@pytest.mark.parametrize("iteration", [2, 60, 105, 150])
def test_workers_that_stay_keep_their_allowance(iteration):
    """Workers that stay are predicted as if no other had left or joined."""
    series = contended(4, iterations=200, workers=3)
    script = np.roll(series.speeds, -1, axis=0)
    script[100:, 0] *= 0.7
    undisturbed = replay(Guarded(Scripted(script)), series)

    order = [2, 0, 1]  # worker 1 goes, and a newcomer takes its column
    moved = script.copy()
    moved[iteration:] = script[iteration:, order]
    predictor = Guarded(Scripted(moved))
    predictor.set_workers(["w0", "w1", "w2"])
    for row, speeds in enumerate(series.speeds):
        if row == iteration:
            predictor.set_workers(["w2", "w0", "new"])
        columns = [0, 1, 2] if row < iteration else order
        assert predictor.predict()[:2] == pytest.approx(undisturbed[row, columns[:2]], nan_ok=True)
        predictor.observe(speeds[columns], series.cpu[row], series.memory[row])
