"""Measured step times as curves: exact where measured, never falling, and split as well as can be."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsize_manager.policies.step_times import StepTimes, rising

JUST_MORE = 1 + 1e-9


@st.composite
def step_times(draw):
    """Draw step times at a few batch sizes, flat in places."""
    sizes = sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=4)))
    steps = [draw(st.floats(0.1, 5)), *(draw(st.sampled_from([0.0, 0.1, 1.0])) for _ in sizes[1:])]
    return StepTimes(tuple(sizes), tuple(itertools.accumulate(steps)))


@given(step_times())
def test_times_are_those_measured_and_never_fall(times):
    """A measured batch takes what was measured; a sample more never takes less, within bounds and beyond."""
    seconds = [times.time(count) for count in range(40)]

    assert [seconds[size] for size in times.sizes] == pytest.approx(times.seconds)
    assert all(more >= less / JUST_MORE for less, more in itertools.pairwise(seconds))


@given(step_times(), st.integers(1, 30))
def test_within_is_the_inverse_of_time(times, count):
    """In the time of a batch that batch can be done, and none that takes longer."""
    most = int(times.within(times.time(count) * JUST_MORE))

    assert most >= count
    assert times.time(most) <= times.time(count) * JUST_MORE**2
    assert times.within(times.seconds[0] / 2) == 0


def test_beyond_what_was_measured_the_last_line_goes_on():
    """Times go on by the last slope, or by half of the average cost of a sample where that is more."""
    assert StepTimes((2, 4), (1.0, 3.0)).time(6) == pytest.approx(5.0)
    assert StepTimes((2, 4), (1.0, 1.0)).time(8) == pytest.approx(1.5)
    assert StepTimes((4,), (1.0,)).time(8) == pytest.approx(1.5)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.integers(1, 5)), min_size=1, max_size=6))
def test_rising_values_are_the_nearest(noisy):
    """The values never fall, keep the weighted mean, and stay where the noisy ones do not fall."""
    values, weights = zip(*noisy, strict=True)
    found = rising(values, weights)

    assert all(more >= less for less, more in itertools.pairwise(found))
    mean = sum(value * weight for value, weight in noisy)
    assert sum(value * weight for value, weight in zip(found, weights, strict=True)) == pytest.approx(mean)
    assert rising(sorted(values), weights) == sorted(values)


def test_a_spike_does_not_lift_what_follows():
    """A value that is too large is averaged with those after it that are smaller, and no further."""
    assert rising([5.0, 1.0, 3.0, 4.0], [1, 1, 1, 1]) == [3.0, 3.0, 3.0, 4.0]
