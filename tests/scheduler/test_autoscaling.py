"""Rules for the nodes of one job: bounds, monotony, and the cases of the papers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.autoscaling import ABOVE, TARGET, cheapest, ideal_share, quickest, scale_up

rates = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=16).map(np.array)
scaled = rates.flatmap(lambda its: st.tuples(st.just(its), st.integers(1, len(its))))


def amdahl(serial, nodes=16):
    """Rates of a job of which a part does not scale."""
    return 1 / (serial + (1 - serial) / np.arange(1, nodes + 1))


@given(scaled)
def test_a_job_never_has_fewer_nodes_than_before(case):
    """It scales up only, and never beyond the nodes with a known rate."""
    its, nodes = case
    assert nodes <= scale_up(its, nodes) <= len(its)


@given(scaled)
def test_a_job_scales_only_above_the_upper_part_and_to_the_lower(case):
    """At or below U it stays; above it has L of the ideal rate afterwards, and no larger number has."""
    its, nodes = case
    shares = ideal_share(its)
    chosen = scale_up(its, nodes)

    if shares[nodes - 1] <= ABOVE:
        assert chosen == nodes
    else:
        assert shares[chosen - 1] >= TARGET
        assert (shares[chosen:] < TARGET).all()


@given(scaled, st.floats(1.0, 3.0))
def test_better_scaling_never_means_fewer_nodes(case, factor):
    """Where all rates beyond one node's are higher, the job has as many nodes or more."""
    its, nodes = case
    better = np.where(np.arange(len(its)) > 0, factor * its, its)
    assert scale_up(better, nodes) >= scale_up(its, nodes)


@given(rates)
def test_the_quickest_and_the_cheapest_are_the_least(seconds):
    """No other number of nodes has a shorter time, or a lower cost."""
    nodes = np.arange(1, len(seconds) + 1)
    assert seconds[quickest(seconds) - 1] == seconds.min()
    assert (seconds * nodes)[cheapest(seconds) - 1] == (seconds * nodes).min()


def test_of_equal_choices_the_smallest_is_taken():
    """Nodes that save nothing are not rented."""
    assert quickest(np.array([3.0, 2.0, 2.0])) == 2
    assert cheapest(np.array([2.0, 1.0])) == 1


@pytest.mark.parametrize(
    ("its", "nodes", "chosen"),
    [
        # With a third that does not scale, two nodes have 3/4 of the ideal rate, four have 1/2 and five less.
        (amdahl(1 / 3), 1, 4),
        (amdahl(1.0), 1, 2),
        (amdahl(0.0), 1, 16),
        # Four nodes with 0.64 of the ideal rate are kept; with 0.73 there are more.
        (amdahl(0.19), 4, 4),
        (amdahl(0.12), 4, 9),
        # Two nodes with four thirds of one node's rate have two thirds of the ideal, not more.
        (np.array([3.0, 4.0, 5.0]), 2, 2),
        (np.array([3.0, 4.1, 5.0]), 2, 3),
    ],
)
def test_a_job_has_the_nodes_of_which_it_makes_use(its, nodes, chosen):
    """It waits until it scales better."""
    assert scale_up(its, nodes) == chosen
