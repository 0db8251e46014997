"""Batches are cut where shares of their cost end, and the costs that are told are those of their samples."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsize_manager.job.costs import BatchCosts, KnownCosts, cut_by_cost, cut_by_padded_cost
from idl.bounds import Bounds
from idl.costs import Costs, scaled_costs
from idl.cuts import Cuts

COSTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=60).map(np.array)
SHARES = st.lists(st.integers(0, 500), min_size=1, max_size=8).filter(any)


@given(COSTS, SHARES)
def test_slices_end_nearest_to_their_shares(costs, shares):
    """Slices tile the batch; borders are the nearest to shares of the cost, unless a slice would be empty."""
    counts = cut_by_cost(costs, shares, [Bounds()] * len(shares))
    assert sum(counts) == len(costs)
    assert all(count >= 0 for count in counts)
    assert all(not count for count, share in zip(counts, shares, strict=True) if not share)
    wanted = [share > 0 for share in shares]
    if len(costs) >= sum(wanted):
        assert all(count for count, share in zip(counts, shares, strict=True) if share)
    borders = np.concatenate([[0], np.cumsum(costs)])
    ends = np.cumsum(counts)
    for place, end in enumerate(ends[:-1]):
        if min(counts[place], counts[place + 1]) > 1 and all(wanted[place : place + 2]):
            target = borders[-1] * sum(shares[: place + 1]) / sum(shares)
            nearest = np.abs(borders - target).min()
            assert abs(borders[end] - target) == pytest.approx(nearest, abs=1e-9 * borders[-1])


@given(COSTS, st.data())
def test_bounds_stay_samples(costs, data):
    """However unlike samples are, no slice has more than its most samples, or fewer than its least."""
    n = data.draw(st.integers(1, 6))
    bounds = []
    for _ in range(n):
        least = data.draw(st.integers(1, 10))
        bounds.append(Bounds(least, data.draw(st.integers(least, 40))))
    shares = data.draw(st.lists(st.integers(1, 500), min_size=n, max_size=n))
    counts = cut_by_cost(costs, shares, bounds)
    assert sum(counts) == len(costs)
    if sum(b.minimum for b in bounds) <= len(costs) <= sum(b.maximum for b in bounds):
        assert all(b.minimum <= count <= b.maximum for b, count in zip(bounds, counts, strict=True))


def test_granularity_is_kept_but_by_the_last():
    """Slices are multiples of what their workers ask for; the last has the rest."""
    counts = cut_by_cost(np.ones(30), [1, 1, 1], [Bounds(granularity=4)] * 3)
    assert counts == [8, 12, 10]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 30)), max_size=20))
def test_what_is_known_is_what_was_told(runs):
    """Whatever is told, repeated or left out, a batch's costs are its own, or not known."""
    drawn = np.random.default_rng(1).integers(1, 2**32, (4, 80))
    known = KnownCosts(1.0)
    for epoch, start, count in runs:
        part = drawn[epoch, start : start + count].astype("<u4")
        known.take([Costs(epoch, start, part.tobytes())])
        assert np.array_equal(known.of(epoch, start, count), part)
    for epoch in range(4):
        for start in range(0, 60, 7):
            found = known.of(epoch, start, 9)
            assert found is None or np.array_equal(found, drawn[epoch, start : start + 9])


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        ([1, 2], r"shape \(2,\): must be one number for each of 3 samples"),
        ([1, -2, 3], "cost -2 of sample 1: must be a finite number from 0"),
        ([1, float("nan"), 3], "cost nan of sample 1"),
        ([0, 0, 0], "is 0 for each sample"),
        (["a", "b", "c"], "must be one number for each sample"),
    ],
)
def test_what_is_no_cost_is_refused(cost, said):
    """The error names the value, and what is allowed."""
    with pytest.raises(ValueError, match=said):
        scaled_costs(cost, 3)
    with pytest.raises(ValueError, match=said):
        scaled_costs(cost.__getitem__, len(cost)) if len(cost) == 3 else scaled_costs(cost, 3)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=9).map(sorted).map(np.array), SHARES)
def test_padded_slices_have_the_lowest_level(costs, shares):
    """No other cut of the sorted batch has a lower dearest slice, in proportion to its share."""
    counts = cut_by_padded_cost(costs, shares, [Bounds()] * len(shares))
    assert sum(counts) == len(costs)
    assert all(not count for count, share in zip(counts, shares, strict=True) if not share)
    wanted = [share for share in shares if share]
    if len(costs) < len(wanted):
        return

    def level(cuts):
        ends = [0, *cuts, len(costs)]
        parts = zip(wanted, ends[:-1], ends[1:], strict=True)
        return max((stop - first) * costs[stop - 1] / share for share, first, stop in parts)

    best = min(map(level, itertools.combinations(range(1, len(costs)), len(wanted) - 1)))
    own = np.cumsum([count for count, share in zip(counts, shares, strict=True) if share])[:-1]
    assert level(own.tolist()) == pytest.approx(best, rel=1e-9)


@given(COSTS, st.integers(1, 7), SHARES)
def test_micro_batches_are_cut_by_cost(costs, unit, shares):
    """Slices are whole micro-batches, of which a padded one costs as much as its dearest sample for each."""
    cuts = Cuts(len(costs), unit)
    for is_sorted in (False, True):
        batch = BatchCosts.of(costs, cuts, is_sorted=is_sorted)
        counts = batch.cut(shares, [Bounds()] * len(shares), cuts)
        assert sum(counts) == len(costs)
        ends = np.cumsum(counts).tolist()
        assert all(cuts.index(end) >= 0 for end in ends)
        whole = sum(batch.slice(end - count, count) for end, count in zip(ends, counts, strict=True))
        if is_sorted and unit > 1:
            micro_batches = cuts.within(0, len(costs))
            assert whole == pytest.approx(sum((b - a) * np.sort(costs)[b - 1] for a, b in micro_batches))
        elif not is_sorted:
            assert whole == pytest.approx(costs.sum())
