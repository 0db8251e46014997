"""The time series of measurements, and the inputs of equation 4 taken from it."""

import numpy as np

from predictors.time_series import TimeSeries, samples

NAN = float("nan")


def kept(rows, length=10):
    """Return the time series of one worker's (speed, cpu, memory) rows."""
    series = TimeSeries(length)
    series.reindex([None])
    for row in rows:
        series.append(*(np.array([value]) for value in row))
    return series


ROWS = [(10.0, 0.1, 0.5), (20.0, 0.2, 0.6), (30.0, 0.3, 0.7), (40.0, 0.4, 0.8), (50.0, 0.5, 0.9)]


def test_samples_pair_inputs_with_the_speed_that_followed():
    """Five iterations give two samples, each without anything of the iteration that it is about.

    Inputs are the last two speeds, then CPU and memory usage: current, last, and before that.
    """
    given, followed, usable = samples(kept(ROWS).latest(5))

    assert followed.tolist() == [[40.0], [50.0]]
    assert given[0, 0].tolist() == [30, 20, 0.3, 0.2, 0.1, 0.7, 0.6, 0.5]
    assert usable.tolist() == [[1.0], [1.0]]


def test_only_the_latest_are_kept():
    """A time series of three iterations forgets the fourth last."""
    series = kept(ROWS, length=3)

    assert len(series) == 3
    assert series.latest(10)[:, 0, 0].tolist() == [30.0, 40.0, 50.0]


def test_missing_speeds_are_no_targets():
    """A worker without samples has its last speed as an input, and no target."""
    rows = list(ROWS)
    rows[3] = (NAN, 0.4, 0.8)
    given, followed, usable = samples(kept([*rows, (60.0, 0.6, 1.0)]).latest(6))

    assert usable.ravel().tolist() == [0.0, 1.0, 1.0]
    assert followed.ravel().tolist() == [0.0, 50.0, 60.0]
    assert given[1, 0, :2].tolist() == [30.0, 30.0]


def test_workers_keep_their_past_where_they_move():
    """A newcomer's past is unknown, and gives no samples."""
    series = kept(ROWS)
    series.reindex([None, 0])
    given, followed, usable = samples(series.latest(5))

    assert followed[:, 1].tolist() == [40.0, 50.0]
    assert usable.tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert np.isfinite(given).all()
