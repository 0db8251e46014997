"""Figures of a run's records, computed by hand."""

import math

import numpy as np
import pytest

from evenpace.lab.experiments import analysis


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


def test_the_oracle_splits_by_the_speeds_of_that_iteration():
    """Speeds of 10 and 30 samples/s: of 40 samples 10 and 30, so that both take one second."""
    records = [record((20, 2.0, 0, None), (20, 2 / 3, 1.3, None))]

    assert analysis.oracle_times(records) == pytest.approx([1.0])


def test_the_oracle_deals_in_whole_samples():
    """One of two workers with equal speeds takes two of three samples."""
    assert analysis.oracle_times([record((1, 1.0, 0, None), (2, 2.0, 0, None))]) == pytest.approx([2.0])


def test_an_iteration_without_a_speed_has_no_oracle():
    """A worker without samples shows no speed."""
    assert np.isnan(analysis.oracle_times([record((3, 1.0, 0, None), (0, 0.0, 1, None))])).all()


def test_waiting_is_a_share_of_all_workers_time():
    """Two workers compute for one and two seconds, and one waits for one: a quarter."""
    assert analysis.waiting_share([record((1, 1, 1.0, None), (1, 2, 0.0, None))]) == 0.25
    assert math.isnan(analysis.waiting_share([]))


def test_prediction_errors_by_worker():
    """Errors of 1 and -3 around speeds of 10 and 20: a root mean square of sqrt(5), a mean speed of 15."""
    records = [record((10, 1, 0, 11.0)), record((20, 1, 0, 17.0)), record((20, 1, 0, None))]

    assert analysis.prediction_errors(records) == {"w0": (pytest.approx(math.sqrt(5)), 15.0)}
    assert analysis.relative_rmse(records) == pytest.approx(math.sqrt(5) / 15)


def test_without_predictions_there_is_no_error():
    """A policy that does not predict has none."""
    assert analysis.relative_rmse([record((10, 1, 0, None))]) is None


def test_the_target_is_reached_at_the_first_point_that_good():
    """None if no point is."""
    curve = [{"accuracy": 0.1}, {"accuracy": 0.5}, {"accuracy": 0.4}]

    assert analysis.reach(curve, 0.3) is curve[1]
    assert analysis.reach(curve, 0.6) is None
