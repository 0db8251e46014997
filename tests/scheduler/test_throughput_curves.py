"""Batches that are split over devices of several kinds by models of their step times."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsize_manager.policies.solver import split_evenly_in_time
from idl.bounds import Bounds
from scheduler.throughput import Throughput
from scheduler.throughput_curves import ThroughputCurves

seconds = st.floats(1e-4, 1.0)
models = st.builds(Throughput, seconds, seconds, seconds, seconds, seconds, seconds, st.floats(1.0, 10.0))


@settings(deadline=None)
@given(st.lists(models, min_size=2, max_size=3), st.integers(3, 40), st.data())
def test_no_other_split_is_faster(its, total, data):
    """The longest time of a replica is the least among all splits that give each a sample."""
    curves = ThroughputCurves(its, data.draw(st.integers(1, len(its))))
    counts = split_evenly_in_time(curves, total, [Bounds() for _ in its])

    def longest(split):
        return max(curves.time(worker, count) for worker, count in enumerate(split))

    splits = itertools.product(range(1, total + 1), repeat=len(its))
    assert sum(counts) == total
    assert longest(counts) <= min(longest(one) for one in splits if sum(one) == total) * (1 + 1e-9)


def test_all_wait_for_the_slowest_network():
    """A kind that synchronises at once waits for the other one."""
    slow, fast = (Throughput(0.1, 0.01, sync, 0.0, sync, 0.0, 1.0) for sync in (1.0, 0.0))
    curves = ThroughputCurves([slow, fast], 2)

    assert curves.time(0, 10) == curves.time(1, 10) == pytest.approx(0.2 + 1.0)
