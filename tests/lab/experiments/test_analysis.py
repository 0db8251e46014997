"""Figures of a run's records, computed by hand."""

import math

import pytest

from lab.experiments import analysis


def record(*parts, duration=2.0):
    """A record; each part is batch size, seconds, waiting, predicted speed."""
    workers = {
        f"w{i}": {
            "batch_size": size,
            "batch_processing_time": seconds,
            "waiting_time": waiting,
            "predicted_speed": predicted,
        }
        for i, (size, seconds, waiting, predicted) in enumerate(parts)
    }
    return {"duration": duration, "total": sum(part[0] for part in parts), "workers": workers}


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [
        # Speeds of 10 and 30 samples/s: of 40 samples 10 and 30, so that both take one second.
        (((20, 2.0, 0, None), (20, 2 / 3, 1.3, None)), 1.0),
        # It deals in whole samples: one of two workers with equal speeds takes two of three.
        (((1, 1.0, 0, None), (2, 2.0, 0, None)), 2.0),
        # A worker without samples shows no speed.
        (((3, 1.0, 0, None), (0, 0.0, 1, None)), math.nan),
    ],
)
def test_the_oracle_splits_by_the_speeds_of_that_iteration(parts, seconds):
    """Where all of them are known."""
    assert analysis.oracle_times([record(*parts)]) == pytest.approx([seconds], nan_ok=True)


def test_waiting_is_a_share_of_all_workers_time():
    """Two workers compute for one and two seconds, and one waits for one: a quarter."""
    assert analysis.waiting_share([record((1, 1, 1.0, None), (1, 2, 0.0, None))]) == 0.25
    assert math.isnan(analysis.waiting_share([]))


def test_prediction_errors_by_worker():
    """Errors of 1 and -3 around speeds of 10 and 20: a root mean square of sqrt(5), a mean speed of 15."""
    records = [record((10, 1, 0, 11.0)), record((20, 1, 0, 17.0)), record((20, 1, 0, None))]

    assert analysis.prediction_errors(records) == {"w0": (pytest.approx(math.sqrt(5)), 15.0)}
    assert analysis.relative_rmse(records) == pytest.approx(math.sqrt(5) / 15)


def test_the_target_is_reached_at_the_first_point_that_good():
    """None if no point is."""
    curve = [{"accuracy": 0.1}, {"accuracy": 0.5}, {"accuracy": 0.4}]

    assert analysis.reach(curve, 0.3) is curve[1]
    assert analysis.reach(curve, 0.6) is None
