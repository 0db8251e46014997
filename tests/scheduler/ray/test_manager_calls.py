"""How long a job's iterations take, from looks at it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.ray.manager_calls import Pace


@given(seconds=st.floats(0.01, 20.0), phase=st.floats(0.0, 1.0))
def test_the_pace_is_known_from_looks_once_a_second(seconds, phase):
    """Looks that are as far apart as iterations, or farther, do not make them seem much longer or shorter."""
    pace = Pace()
    for look in range(int(8 * seconds) + 8):
        pace.note(int((look + phase) / seconds), look)
    assert pace.seconds == pytest.approx(seconds, abs=0.25 * min(1.0, seconds))


def test_an_iteration_that_takes_longer_than_the_last_ones_is_noted():
    """The present one has lasted so long already."""
    pace = Pace()
    for now in range(6):
        pace.note(now, now)
    pace.note(5, 14)
    assert pace.seconds == 9


def test_iterations_that_were_taken_back_tell_nothing():
    """The pace is taken anew from there."""
    pace = Pace()
    assert pace.seconds == 0
    for iteration, now in ((0, 0), (10, 1), (4, 30), (6, 34)):
        pace.note(iteration, now)
    assert pace.seconds == 2
