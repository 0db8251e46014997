"""Gavel's linear programme, and the order in which jobs have their shares."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.allocation import Allocation
from scheduler.nodes import Cluster
from scheduler.policies.base import Round
from scheduler.policies.gavel import Gavel, equal_split, max_min_shares, max_sum_shares
from tests.scheduler.policies.rounds import asking


@st.composite
def programmes(draw, most):
    """Rates of up to `most` jobs on two kinds, the devices that they want, and those of each kind."""
    jobs = draw(st.integers(1, most))
    rates = np.array([[draw(st.integers(1, 20)) for _ in range(2)] for _ in range(jobs)], dtype=float)
    wanted = np.array([draw(st.integers(1, 4)) for _ in range(jobs)])
    return rates, wanted, np.array([draw(st.integers(1, 6)) for _ in range(2)])


def assert_allowed(shares, wanted, sizes):
    """Check that shares are allowed, but for rounding."""
    assert (shares >= 0).all()
    assert (shares.sum(axis=1) <= 1 + 1e-4).all()
    assert (wanted @ shares <= sizes + 1e-3).all()


def vertices(rates, wanted, sizes):
    """All corners of the shares that are allowed, by solving each choice of constraints as equations."""
    jobs, kinds = rates.shape
    upper = [*np.kron(wanted, np.eye(kinds)), *np.kron(np.eye(jobs), np.ones(kinds))]
    rows = np.array([*upper, *-np.eye(jobs * kinds)])
    limits = np.array([*sizes, *np.ones(jobs), *np.zeros(jobs * kinds)])
    for chosen in map(list, itertools.combinations(range(len(rows)), jobs * kinds)):
        if abs(np.linalg.det(rows[chosen])) > 1e-9:
            corner = np.linalg.solve(rows[chosen], limits[chosen])
            if (rows @ corner <= limits + 1e-9).all():
                yield corner


@settings(max_examples=40, deadline=None)
@given(programmes(3))
def test_no_corner_of_the_programme_has_a_larger_sum_of_throughputs(programme):
    """The shares are allowed, and as good as the best of all corners, but for rounding."""
    rates, wanted, sizes = programme
    shares = max_sum_shares(*programme)

    assert_allowed(shares, wanted, sizes)
    best = max(rates.ravel() @ corner for corner in vertices(rates, wanted, sizes))
    assert (rates * shares).sum() == pytest.approx(best, abs=20 * rates.size * 1e-5)


@settings(max_examples=40, deadline=None)
@given(programmes(4))
def test_the_least_throughput_is_at_least_that_of_an_equal_split(programme):
    """The equal split is allowed, so that no job has less; and shares are allowed, but for rounding."""
    rates, wanted, sizes = programme
    shares = max_min_shares(*programme, np.ones(len(rates)))

    assert_allowed(shares, wanted, sizes)
    assert ((rates * shares).sum(axis=1) >= equal_split(rates, wanted, sizes) * (1 - 1e-3) - 1e-3).all()


def test_throughputs_are_by_weight():
    """Of one device a job of three times the weight has three quarters of the time."""
    one = np.ones(2, dtype=int)
    shares = max_min_shares(np.ones((2, 1)), one, one[:1], np.array([3.0, 1.0]))
    assert shares == pytest.approx(np.array([[0.75], [0.25]]), abs=1e-4)


def test_jobs_take_turns():
    """Of like jobs that do not fit together each runs about as often as the others."""
    its = [asking(n, 2, iterations_per_second={"slow": 1.0, "fast": 0.5}.__getitem__) for n in "abc"]
    cluster, policy, before = Cluster.of([("slow", 1, 2)]), Gavel(), Allocation()
    ran = dict.fromkeys("abc", 0)
    for number in range(30):
        before = policy.allocate(Round(360.0 * number, its, cluster, before))
        for name in before.placements:
            ran[name] += 1

    assert sum(ran.values()) == 30
    assert max(ran.values()) - min(ran.values()) <= 2
