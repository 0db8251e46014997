"""Waves of micro-batches: staircases that never fall, and splits that no other beats."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsize_manager.policies.solver import split_evenly_in_time
from batchsize_manager.policies.waves import WaveCurves, Waves
from idl.bounds import Bounds

JUST_MORE = 1 + 1e-9


@st.composite
def waves(draw, most=5):
    """Draw a worker's waves: some flat, some steep, with or without a prescribed number."""
    steps = draw(st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0, 3.0]), max_size=most - 1))
    seconds = np.cumsum([draw(st.floats(0.1, 10)), *steps])
    at_once = draw(st.none() | st.integers(1, len(seconds)))
    return Waves(tuple(seconds.tolist()), at_once)


def one_by_one(its, number, at_once):
    """Return the seconds of `number` micro-batches, wave after wave."""
    seconds = 0.0
    while number:
        wave = min(number, at_once)
        seconds += its.seconds[wave - 1]
        number -= wave
    return seconds


def choices(its):
    """Return the numbers at once that a worker may choose from."""
    return range(1, len(its.seconds) + 1) if its.at_once is None else [its.at_once]


@given(waves(), st.integers(1, 30))
def test_time_is_that_of_the_waves_one_by_one(its, number):
    """The time is the sum over all waves, the last of what is left, with the best number at once."""
    times = {at_once: one_by_one(its, number, at_once) for at_once in choices(its)}

    assert its.time(number) == pytest.approx(min(times.values()))
    assert times[its.best_at_once(number)] <= min(times.values()) * JUST_MORE


@given(waves())
def test_time_never_falls(its):
    """One micro-batch more never takes less, as the solver requires, whichever number at once is the best."""
    times = [its.time(number) for number in range(40)]

    assert all(more >= less / JUST_MORE for less, more in itertools.pairwise(times))


@settings(deadline=None)
@given(
    st.lists(st.tuples(waves(), st.integers(0, 2), st.integers(2, 9)), min_size=1, max_size=3),
    st.integers(0, 27),
)
def test_optimal_against_brute_force(workers, more):
    """No other split within the bounds has a shorter longest time."""
    its = [waves for waves, _, _ in workers]
    limits = [(max(1, low), high) for _, low, high in workers]
    least, most = (sum(limit) for limit in zip(*limits, strict=True))
    total = least + more % (most - least + 1)
    numbers = split_evenly_in_time(WaveCurves(its), total, [Bounds(*limit) for limit in limits])

    longest = max(waves.time(number) for waves, number in zip(its, numbers, strict=True))
    splits = itertools.product(*(range(low, high + 1) for low, high in limits))
    best = min(
        max(waves.time(number) for waves, number in zip(its, split, strict=True))
        for split in splits
        if sum(split) == total
    )
    assert sum(numbers) == total
    assert longest <= best * JUST_MORE
