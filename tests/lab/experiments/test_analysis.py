"""Figures of a run's records and curves, computed by hand."""

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


def curve(*points):
    """Points of seconds, updates and accuracy."""
    return [dict(zip(("seconds", "updates", "accuracy"), point, strict=True)) for point in points]


@pytest.mark.parametrize(
    ("durations", "shown", "workers", "synchronous", "settle", "seconds"),
    [
        # Four workers push four gradients in an iteration of 2 s; the first, of 10 s, is left out.
        ((10.0, 1.0, 3.0), curve((0, 0, 0)), 4, True, 1, 0.5),
        # Without barriers, updates take a fifth of a second each from 10 at 3 s to 50 at 11 s.
        ((), curve((0, 0, 0), (3, 10, 0), (5, 18, 0), (11, 50, 0)), 2, False, 5, 0.2),
        # The snapshot before is taken where none has exactly the updates of the settling.
        ((), curve((0, 0, 0), (4, 40, 0)), 2, False, 10, 0.1),
    ],
)
def test_seconds_of_an_update(durations, shown, workers, synchronous, settle, seconds):
    """With barriers it takes its part of the iteration; without, updates are counted."""
    records = [{"duration": duration} for duration in durations]
    found = analysis.per_update_seconds(records, shown, workers, synchronous, settle=settle)
    assert found == pytest.approx(seconds)


def test_updates_to_an_accuracy_lie_between_snapshots():
    """An accuracy of 60% is a quarter of the way from 50% at 100 updates to 90% at 200."""
    shown = curve((0, 0, 0.1), (10, 100, 0.5), (30, 200, 0.9), (50, 300, 0.7))

    assert analysis.crossing(shown, 0.6) == (pytest.approx(125), pytest.approx(15))
    assert analysis.crossing(shown, 0.9) == (pytest.approx(200), pytest.approx(30))
    assert analysis.crossing(shown, 0.1) == (0, 0)
    assert analysis.crossing(shown, 0.95) is None
