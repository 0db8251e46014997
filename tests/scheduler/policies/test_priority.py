"""Strict priorities: order of descending weight, fixed numbers, no preemption."""

import pytest
from hypothesis import given

from scheduler.nodes import Cluster
from scheduler.policies.priority import Priority
from tests.scheduler.policies import rounds
from tests.scheduler.policies.rounds import asking, numbers, play, weighted

NODE = Cluster.of([("gpu", 1, 4)])


def allocate(*jobs, before=None, passing=False):
    """The numbers of devices that the policy chooses."""
    return numbers(rounds.allocate(Priority(passing=passing), *jobs, cluster=NODE, before=before))


@given(weighted())
def test_a_running_job_keeps_its_placement(case):
    """Nothing is preempted, moved or resized."""
    for at, allocation in play(Priority(), *case):
        assert all(allocation[job] == placement for job, placement in at.allocation.placements.items())


@given(weighted())
def test_the_first_in_the_queue_waits_only_where_it_does_not_fit(case):
    """Of the jobs that wait, the one of the largest weight asks for more than is free."""
    for at, allocation in play(Priority(), *case):
        waiting = [job for job in at.jobs if not allocation[job.name] and job.devices <= at.cluster.devices]
        free = at.cluster.devices - sum(allocation.used().values())
        assert not waiting or max(waiting, key=lambda job: job.weight).devices > free


WAITING = [asking("1", 2), asking("2", 4, weight=10.0), asking("3", 2), asking("4", 2, weight=5.0)]
RUNNING = {"1": (("gpu-0", 2),)}


@pytest.mark.parametrize(
    ("jobs", "before", "passing", "expected"),
    [
        # The largest weight starts first, and the order of submission decides among equal ones.
        ([asking("a", 2), asking("b", 2, weight=5.0), asking("c", 4)], {}, False, {"b": 2, "a": 2}),
        # Devices stay idle while the next in order needs more, as in VirtualFlow's trace of three jobs.
        (WAITING, RUNNING, False, {"1": 2}),
        # What the next in order cannot use goes to the first that can, where jobs may pass.
        (WAITING, RUNNING, True, {"1": 2, "4": 2}),
    ],
)
def test_jobs_start_in_the_order_of_their_weights(jobs, before, passing, expected):
    """A job passes one that does not fit only where it may."""
    assert allocate(*jobs, before=before, passing=passing) == expected
