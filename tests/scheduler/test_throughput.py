"""The model of step times, against its equations, and its fit, against planted and measured steps."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.throughput import Throughput, fit

PLANTED = Throughput(0.05, 0.002, 0.2, 0.01, 0.04, 0.003, 2.0)
PLACES = [
    (nodes, replicas, local)
    for nodes, replicas in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 8), (4, 16))
    for local in (16, 32, 64)
]

seconds = st.floats(1e-4, 10)
planted = st.builds(
    Throughput,
    seconds,
    st.floats(1e-6, 1),
    seconds,
    st.floats(0, 1),
    seconds,
    st.floats(0, 1),
    st.floats(1, 10),
)


def measured(model, places):
    """Return measurements without errors, as the model predicts them."""
    return {
        place: (float(model.seconds(*place)), float(model.seconds(*place) - model.gradient_seconds(place[2])))
        for place in places
    }


def test_times_worked_out_by_hand():
    """Gradients are linear in the batch, synchronisation in replicas beyond two, and γ puts them together."""
    assert PLANTED.seconds(1, 1, 100) == pytest.approx(0.25)
    assert PLANTED.sync_seconds([1, 1, 1, 2], [1, 2, 4, 4]).tolist() == pytest.approx([0, 0.04, 0.046, 0.22])
    assert PLANTED.seconds(2, 4, 100) == pytest.approx(math.hypot(0.25, 0.22))
    assert PLANTED.seconds(2, 4, 100, 3) == pytest.approx(3 * 0.25 + math.hypot(0.25, 0.22))


@given(planted, st.integers(1, 1000))
def test_an_iteration_takes_between_the_longer_part_and_both(model, local):
    """Overlap hides at most the shorter of gradient and synchronisation, and nothing where γ is 1."""
    gradient, sync = model.gradient_seconds(local), model.sync_seconds(3, 5)
    together = model.seconds(3, 5, local)
    assert max(gradient, sync) * (1 - 1e-12) <= together <= (gradient + sync) * (1 + 1e-12)
    assert replace(model, overlap=1.0).seconds(3, 5, local) == pytest.approx(gradient + sync)


@given(
    st.builds(replace, st.just(PLANTED), gradient_base=st.floats(0.01, 0.2), across_base=st.floats(0.05, 0.5))
)
def test_the_fit_recovers_planted_times(model):
    """From steps of all kinds without errors it predicts them, and one that was not measured, within 5%."""
    found = fit(measured(model, PLACES))
    for place in [*PLACES, (3, 12, 48)]:
        assert found.seconds(*place) == pytest.approx(model.seconds(*place), rel=0.05)
        assert found.gradient_seconds(place[2]) == pytest.approx(model.gradient_seconds(place[2]), rel=0.05)


def test_half_of_the_gradient_does_not_depend_on_the_only_local_batch():
    """A job that has run one local batch is taken to gain from larger ones."""
    found = fit(measured(PLANTED, [(1, 1, 32)]))
    assert found.gradient_base == pytest.approx(PLANTED.gradient_seconds(32) / 2)
    assert found.gradient_seconds(32) == pytest.approx(PLANTED.gradient_seconds(32), rel=0.01)


def test_synchronisation_that_was_not_seen_costs_nothing():
    """After one replica alone a job is taken to scale perfectly."""
    found = fit(measured(PLANTED, [(1, 1, 32), (1, 1, 64)]))
    assert found.sync_seconds([1, 2, 16], [4, 2, 64]).max() < 1e-5


def test_nodes_that_were_not_seen_are_a_little_slower_than_one():
    """Synchronisation across nodes is taken to be a tenth slower than within one until it was measured."""
    found = fit(measured(PLANTED, [place for place in PLACES if place[0] == 1]))
    assert found.across_base == pytest.approx(1.1 * found.within_base)
    assert found.across_per_replica == pytest.approx(1.1 * found.within_per_replica)


def test_synchronisation_within_a_node_that_was_not_seen_costs_nothing():
    """Measured across nodes alone, it is taken to be free within one."""
    found = fit(measured(PLANTED, [place for place in PLACES if place[0] > 1]))
    assert found.sync_seconds(1, 4) < 1e-6
    assert found.across_base > 0.01


def test_synchronisation_does_not_grow_before_three_replicas_were_seen():
    """With at most two replicas measured, more are taken to cost no more."""
    found = fit(measured(PLANTED, [place for place in PLACES if place[1] <= 2]))
    assert found.sync_seconds(1, 8) == pytest.approx(found.sync_seconds(1, 2), rel=1e-4)
    assert found.sync_seconds(8, 8) == pytest.approx(found.sync_seconds(2, 2), rel=1e-4)


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 16), st.integers(0, 48), st.integers(1, 512)),
        st.tuples(st.floats(1e-3, 10), st.floats(0, 10)),
        min_size=1,
        max_size=12,
    )
)
def test_any_possible_measurements_have_a_fit_within_the_bounds(drawn):
    """Parameters are above 0 and γ is from 1 to 10, though measurements contradict each other."""
    found = fit(
        {(n, n + more, b): (gradient + sync, sync) for (n, more, b), (gradient, sync) in drawn.items()}
    )
    assert min(found.gradient_base, found.gradient_per_sample, found.across_base, found.within_base) >= 1e-8
    assert 1 <= found.overlap <= 10
