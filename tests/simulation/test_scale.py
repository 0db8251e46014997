"""What workers of one job cost its manager must not grow faster than their number: calls, not times."""

from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.scale import profiles

pytestmark = pytest.mark.ci

FEW, MANY = 8, 32  # workers; a quarter as many join, die, and are replaced at once


def calls(workers):
    """Return how often the manager calls what, by phase: a function by its file's and its own name."""
    counts = {}
    for phase, profile in profiles(workers, workers // 4):
        of_phase = counts[phase] = Counter()
        for entry in profile.getstats():
            code = entry.code
            name = code if isinstance(code, str) else f"{Path(code.co_filename).stem}.{code.co_name}"
            of_phase[name] += entry.callcount
    return counts


@pytest.fixture(scope="module")
def counted():
    """The calls with few workers, and with many."""
    return calls(FEW), calls(MANY)


def test_an_iteration_costs_each_worker_the_same(counted):
    """All calls of all functions."""
    few, many = (counts["steady"].total() for counts in counted)
    assert few > 100 * FEW
    assert many / MANY < 1.1 * few / FEW


@pytest.mark.parametrize("phase", ["join", "die", "come back", "are replaced"])
def test_the_policy_gets_the_members_once_for_a_plan(counted, phase):
    """However many have come and gone since the last one."""
    for counts in counted:
        assert 1 <= counts[phase]["planner._set_members"] <= counts[phase]["planner.plan_next"]


def test_bounds_are_made_for_those_that_join_alone(counted):
    """Not for each that can redo a part of each that has died."""
    assert [counts["die"]["bounds.__post_init__"] for counts in counted] == [0, 0]
    assert [counts["join"]["bounds.__post_init__"] for counts in counted] == [FEW // 4, MANY // 4]


def test_another_attempt_is_written_a_few_times(counted):
    """Not once for each member whose report does not count."""
    few, many = (counts["another attempt"]["members.saved"] for counts in counted)
    assert 1 <= few == many <= 5
