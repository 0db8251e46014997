"""The simulated all-reduce: equation 7 of Cannikin where nothing is noisy, and what workers measure of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.bench.all_reduce import AllReduce


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 0.99)), min_size=1, max_size=5),
    st.floats(0.001, 20),
    st.integers(1, 20),
)
def test_an_iteration_takes_as_long_as_equation_7_has_it(workers, seconds, buckets):
    """By the buckets it ends when the largest of the workers' times has passed."""
    computing, backward = np.array(workers).T
    reduction = AllReduce(seconds, buckets, tuple(backward))
    took, _ = reduction.iterate(computing, np.ones(1))
    expected = [reduction.table(i, computing[[i]])[0] for i in range(len(workers))]
    assert took == pytest.approx(max(expected))


@given(st.floats(0.2, 5), st.integers(1, 20))
def test_only_the_last_worker_measures_the_reductions_alone(seconds, buckets):
    """Others count their waiting for it as well."""
    reduction = AllReduce(seconds, buckets, (0.5, 0.5))
    _, (slow, fast) = reduction.iterate(np.array([3.0, 1.0]), np.ones(1))
    each = seconds / buckets
    assert slow["last_bucket_time"] == pytest.approx(each)
    assert slow["other_buckets_time"] == pytest.approx(seconds - each)
    assert slow["first_bucket_time"] == pytest.approx(1.5 / buckets)
    whole = fast["other_buckets_time"] + fast["last_bucket_time"]
    assert whole > seconds + 0.5
