"""Whole batch sizes: exact sums, counts within bounds, and no split that finishes sooner."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsize_manager.policies.solver import InfeasibleError, split
from idl.bounds import Bounds

SPEEDS = st.floats(1e-9, 1e9)


@st.composite
def bounds(draw, largest_granularity):
    """Draw bounds of a worker that include a multiple of its granularity."""
    granularity = draw(st.integers(1, largest_granularity))
    minimum = draw(st.integers(1, 30))
    lowest = -(-minimum // granularity) * granularity
    return Bounds(minimum, draw(st.integers(lowest, 60)), granularity)


@st.composite
def problems(draw, largest_granularity=8, least=lambda limits: 1):
    """Draw speeds, bounds, and a total from `least` of these on that fits into the maxima."""
    limits = draw(st.lists(bounds(largest_granularity), min_size=1, max_size=8))
    speeds = draw(st.lists(SPEEDS, min_size=len(limits), max_size=len(limits)))
    total = draw(st.integers(least(limits), sum(bound.maximum for bound in limits)))
    return speeds, total, limits


def slowest(counts, speeds):
    """Return the time of the worker that finishes last."""
    return max(Fraction(count) / Fraction(speed) for count, speed in zip(counts, speeds, strict=True))


def brute_force(speeds, total, ranges):
    """Return the shortest longest time of all splits whose counts lie in the ranges."""
    splits = (counts for counts in itertools.product(*ranges) if sum(counts) == total)
    return min((slowest(counts, speeds) for counts in splits), default=None)


@settings(deadline=None)
@given(problems())
def test_sum_and_bounds_hold(problem):
    """Counts sum to the total and keep the maxima; the minima too, unless the total is below their sum."""
    speeds, total, limits = problem
    counts = split(speeds, total, limits)

    assert sum(counts) == total
    assert all(0 <= count <= bound.maximum for count, bound in zip(counts, limits, strict=True))
    if total >= sum(bound.minimum for bound in limits):
        assert all(count >= bound.minimum for count, bound in zip(counts, limits, strict=True))


@settings(deadline=None)
@given(problems(1, lambda limits: sum(bound.minimum for bound in limits)))
def test_no_worker_could_hand_a_sample_on(problem):
    """Moving one sample off the slowest worker never helps at granularity 1, at any speeds."""
    speeds, total, limits = problem
    counts = split(speeds, total, limits)

    # A split is optimal exactly if nobody, with one sample more, would still beat the slowest who can give.
    longest = slowest(counts, speeds)
    last = [i for i in range(len(counts)) if Fraction(counts[i]) / Fraction(speeds[i]) == longest]
    if all(counts[i] > limits[i].minimum for i in last):
        for i in range(len(counts)):
            if i not in last and counts[i] < limits[i].maximum:
                assert Fraction(counts[i] + 1) / Fraction(speeds[i]) >= longest * (1 - Fraction(1, 10**8))


@settings(deadline=None)
@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=3),
    st.integers(1, 8),
    st.integers(3, 12),
)
def test_optimal_in_whole_granularities(speeds, granularity, steps):
    """The split is the best of those in multiples of a granularity that all workers share."""
    total = granularity * steps
    counts = split(speeds, total, [Bounds(granularity=granularity)] * len(speeds))

    multiples = range(granularity, total + 1, granularity)
    best = brute_force(speeds, total, [multiples] * len(speeds))
    assert all(count % granularity == 0 for count in counts)
    assert slowest(counts, speeds) <= best * (1 + Fraction(1, 10**8))


@settings(deadline=None)
@given(
    st.lists(SPEEDS, min_size=1, max_size=8),
    st.integers(1, 16),
    st.integers(0, 400),
)
def test_remainder_goes_to_one_worker(speeds, granularity, extra):
    """At most one worker takes the remainder of whole granularities, on top of its multiples."""
    total = granularity * len(speeds) + extra
    counts = split(speeds, total, [Bounds(granularity=granularity)] * len(speeds))

    assert sorted(count % granularity for count in counts)[:-1] == [0] * (len(counts) - 1)


def test_remainder_spreads_over_few_workers_where_one_has_no_room():
    """A remainder that no worker can take alone goes to the fewest that can take it together."""
    limits = [Bounds(1, 9, 8), Bounds(1, 9, 8), Bounds(1, 10, 8)]

    assert split([4.0, 3.0, 1.0], 26, limits) == [8, 8, 10]
    assert split([4.0, 3.0, 1.0], 27, limits) == [9, 8, 10]
    assert split([4.0, 3.0, 1.0], 28, limits) == [9, 9, 10]


def test_minima_are_relaxed_only_below_their_sum():
    """A batch of as many samples as the minima's sum gives the minima; one sample less, proportions."""
    limits = [Bounds(4), Bounds(4)]

    assert split([1000.0, 1.0], 8, limits) == [4, 4]
    assert split([1000.0, 1.0], 7, limits) == [7, 0]


def test_more_than_the_maxima_is_infeasible():
    """A batch that is larger than the maxima together is refused with both numbers."""
    limits = [Bounds(1, 10), Bounds(1, 20)]

    assert split([1.0, 1.0], 30, limits) == [10, 20]
    with pytest.raises(InfeasibleError, match=r"31 samples over 2 workers.* 30 together"):
        split([1.0, 1.0], 31, limits)


def test_whole_shares_survive_rounding_error():
    """Whole shares stay whole though their floating-point quotient may lie a little below."""
    speeds = [0.1, 0.2, 0.3, 0.7]

    assert split(speeds, 1300, [Bounds()] * 4) == [100, 200, 300, 700]


@settings(deadline=None)
@given(st.lists(SPEEDS, min_size=2, max_size=6), st.integers(6, 2**40))
def test_large_totals_keep_their_sum(speeds, total):
    """Sums are exact where shares are too large for a floating-point fraction."""
    counts = split(speeds, total, [Bounds(maximum=2**41)] * len(speeds))

    assert sum(counts) == total
    assert min(counts) >= 1
