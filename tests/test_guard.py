"""The guard: no predictor does worse than the moving average."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.base import Predictor
from predictors.ema import ExponentialMovingAverage
from predictors.guard import Guarded
from tests.series import Series, contended, replay


class Scripted(Predictor):
    """Predicts what it was told to, row by row."""

    def __init__(self, rows):
        self._rows = iter(rows)
        self._next = np.empty(0)

    def observe(self, speeds, cpu_usage, memory_usage):
        """Go on to the next row."""
        self._next = np.array(next(self._rows), dtype=float)

    def predict(self):
        """The row."""
        return self._next.copy()

    def _reindex(self, rows):
        self._next = np.full(len(rows), np.nan)


def series_of(speeds):
    """A series of these speeds, (iterations, workers), with idle CPUs and memory."""
    speeds = np.array(speeds, dtype=float)
    idle = np.zeros(speeds.shape)
    return Series(speeds, idle, idle, speeds)


def squares(predicted, series):
    """The sums of squared errors up to each iteration."""
    return np.nancumsum((predicted - series.speeds) ** 2, axis=0)


ANYTHING = st.one_of(st.floats(0.0, 50.0), st.floats(allow_nan=True, allow_infinity=True))
STEPS = st.lists(st.tuples(st.floats(0.1, 20.0), ANYTHING), min_size=2, max_size=60)


@settings(deadline=None)
@given(STEPS)
def test_never_worse_than_the_average(steps):
    """Whatever is predicted, RMSE is within 2% of the average's after every iteration, once 20 was seen."""
    speeds, script = [(20.0,), *((speed,) for speed, _ in steps)], [(20.0,), *((p,) for _, p in steps)]
    series = series_of(speeds)
    guarded = replay(Guarded(Scripted(script)), series)
    average = replay(ExponentialMovingAverage(), series)

    assert (squares(guarded, series) <= 1.02**2 * squares(average, series) + 1e-9).all()


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(0.2, 3.0), st.integers(2, 100))
def test_never_worse_than_the_average_where_it_was_good(seed, wrong, good):
    """A predictor that is perfect, then constantly wrong, loses no more than it has won."""
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


def test_a_perfect_predictor_is_believed():
    """A predictor that knows the future is followed: its error is a tenth of the average's."""
    series = contended(1, iterations=600, workers=3)
    script = np.roll(series.speeds, -1, axis=0)
    guarded = replay(Guarded(Scripted(script)), series)[200:]
    average = replay(ExponentialMovingAverage(), series)[200:]

    errors = np.sqrt(np.mean((guarded - series.speeds[200:]) ** 2, axis=0))
    assert (errors < 0.1 * np.sqrt(np.mean((average - series.speeds[200:]) ** 2, axis=0))).all()


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
    """A second call, or workers that move, do not change the answer."""
    series = contended(3, iterations=100, workers=3)
    predictor = Guarded(Scripted(np.roll(series.speeds, -1, axis=0)))
    replay(predictor, series)
    before = predictor.predict()
    predictor.set_workers(["w2", "w0", "new"])

    assert np.array_equal(predictor.predict(), [before[2], before[0], np.nan], equal_nan=True)
