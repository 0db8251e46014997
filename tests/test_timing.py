"""The stopwatch, on a clock that the tests set."""

import pytest

from worker import timing
from worker.timing import Stopwatch


class Clock:
    """Stands still until a test moves it."""

    def __init__(self):
        self.now = 1000.0

    def perf_counter(self):
        """Return the made-up time."""
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Put the made-up clock in the place of the time module."""
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_sums_up_what_runs_between_start_and_stop(clock):
    """Time counts while the watch runs and not while it stands still."""
    watch = Stopwatch()
    clock.now += 1
    watch.start()
    clock.now += 2
    watch.stop()
    clock.now += 4
    watch.start()
    clock.now += 8
    watch.stop()

    assert watch.take() == 10


def test_take_stops_and_begins_anew(clock):
    """After take, the watch stands still at 0."""
    watch = Stopwatch()
    watch.start()
    clock.now += 3

    assert watch.take() == 3
    clock.now += 5
    assert watch.take() == 0


def test_starting_or_stopping_twice_changes_nothing(clock):
    """A second start does not lose what ran; a second stop does not count it again."""
    watch = Stopwatch()
    watch.start()
    clock.now += 1
    watch.start()
    clock.now += 1
    watch.stop()
    clock.now += 1
    watch.stop()

    assert watch.take() == 2


def test_exclude_leaves_time_out(clock):
    """Excluded seconds are taken off the sum, whether the watch runs or not."""
    watch = Stopwatch()
    watch.start()
    clock.now += 5
    watch.exclude(2)
    clock.now += 1
    watch.stop()
    watch.exclude(1)

    assert watch.take() == 3


def test_never_below_zero(clock):
    """Excluding more than was measured gives 0, and the next sum owes nothing."""
    watch = Stopwatch()
    watch.exclude(2)
    assert watch.take() == 0

    watch.start()
    clock.now += 1
    assert watch.take() == 1
