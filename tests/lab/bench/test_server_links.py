"""Simulated links to a parameter server: each worker's own equation 7, and what it measures of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.bench.server_links import ServerLinks


@given(
    st.lists(
        st.tuples(st.floats(0.01, 10), st.floats(0.01, 0.99), st.floats(0.001, 20)), min_size=1, max_size=5
    ),
    st.integers(1, 20),
)
def test_each_worker_takes_as_long_as_equation_7_has_it(workers, buckets):
    """The slowest of them ends the iteration, and what is not hidden is their communication time."""
    computing, backward, seconds = np.array(workers).T
    links = ServerLinks(tuple(seconds), buckets, tuple(backward))
    took, measured = links.iterate(computing, np.ones(links.noises))
    expected = [links.table(i, computing[[i]])[0] for i in range(len(workers))]
    assert [its["batch_processing_time"] for its in measured] == pytest.approx(expected)
    assert took == pytest.approx(max(expected))
    for its, alone, whole in zip(measured, computing, seconds, strict=True):
        assert its["batch_processing_time"] - its["communication_time"] == pytest.approx(alone)
        assert its["other_buckets_time"] + its["last_bucket_time"] == pytest.approx(whole)
        assert its["other_buckets_time"] == pytest.approx(whole / 2 * (1 - 1 / buckets))
