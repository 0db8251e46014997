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
