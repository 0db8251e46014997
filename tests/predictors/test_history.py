"""The history: what equation 4 takes as inputs."""

import numpy as np

from predictors.history import History, inputs, samples

NAN = float("nan")


def kept(rows, length=10):
    """A history of one worker's (speed, cpu, memory) rows."""
    history = History(length)
    history.reindex([None])
    for row in rows:
        history.append(*(np.array([value]) for value in row))
    return history


ROWS = [(10.0, 0.1, 0.5), (20.0, 0.2, 0.6), (30.0, 0.3, 0.7), (40.0, 0.4, 0.8), (50.0, 0.5, 0.9)]


def test_inputs_are_those_of_equation_4():
    """The last two speeds, then CPU and memory usage: current, of the last iteration, of the one before."""
    block = kept(ROWS).latest(3)

    assert inputs(block).tolist() == [[[50, 40, 0.5, 0.4, 0.3, 0.9, 0.8, 0.7]]]


def test_samples_pair_inputs_with_the_speed_that_followed():
    """Five iterations give two samples, each without anything of the iteration that it is about."""
    given, followed, usable = samples(kept(ROWS).latest(5))

    assert followed.tolist() == [[40.0], [50.0]]
    assert given[0, 0].tolist() == [30, 20, 0.3, 0.2, 0.1, 0.7, 0.6, 0.5]
    assert usable.tolist() == [[1.0], [1.0]]


def test_only_the_latest_are_kept():
    """A history of three iterations forgets the fourth last."""
    history = kept(ROWS, length=3)

    assert len(history) == 3
    assert history.latest(10)[:, 0, 0].tolist() == [30.0, 40.0, 50.0]


def test_missing_speeds_are_no_targets():
    """Where a worker had no samples its last speed stands in as an input, and is not learnt."""
    rows = list(ROWS)
    rows[3] = (NAN, 0.4, 0.8)
    given, followed, usable = samples(kept([*rows, (60.0, 0.6, 1.0)]).latest(6))

    assert usable.ravel().tolist() == [0.0, 1.0, 1.0]
    assert followed.ravel().tolist() == [0.0, 50.0, 60.0]
    assert given[1, 0, :2].tolist() == [30.0, 30.0]


def test_workers_keep_their_past_where_they_move():
    """A newcomer's past is unknown, and gives no samples."""
    history = kept(ROWS)
    history.reindex([None, 0])
    given, followed, usable = samples(history.latest(5))

    assert followed[:, 1].tolist() == [40.0, 50.0]
    assert usable.tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert np.isfinite(given).all()
