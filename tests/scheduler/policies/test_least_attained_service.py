"""Tiresias: two queues, and devices for the jobs that have had little."""

from dataclasses import replace
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from scheduler.nodes import Cluster
from scheduler.policies.least_attained_service import LeastAttainedService
from tests.scheduler.policies import rounds
from tests.scheduler.policies.rounds import asking, clusters, jobs, numbers, play

CLUSTER = Cluster.of([("gpu", 2, 4)])


allocate = partial(rounds.allocate, cluster=CLUSTER)


@given(clusters.flatmap(lambda cluster: st.tuples(st.just(cluster), jobs(cluster.kinds))))
def test_a_job_that_goes_on_stays_where_it_is(case):
    """A placement changes only to none, or from none."""
    for at, allocation in play(LeastAttainedService(), *case, attained=10_000.0):
        for job in at.jobs:
            assert () in (at.allocation[job.name], allocation[job.name]) or (
                at.allocation[job.name] == allocation[job.name]
            )


def test_jobs_that_have_had_little_come_first():
    """A job with 16 device-hours gives way to one submitted later, and takes what it leaves."""
    old, new = asking("old", 6, attained=57_600.0), asking("new", 4)
    before = {"old": (("gpu-0", 4), ("gpu-1", 2))}

    assert numbers(allocate(LeastAttainedService(), old, new, before=before)) == {"new": 4}
    small = replace(old, devices=4, most_devices=4)
    assert numbers(allocate(LeastAttainedService(), small, new)) == {"new": 4, "old": 4}


def test_a_job_below_the_threshold_is_not_passed():
    """Until then the one submitted first comes first."""
    old, new = asking("old", 6, attained=57_599.0), asking("new", 4)
    assert numbers(allocate(LeastAttainedService(), old, new)) == {"old": 6}


def test_the_second_queue_is_in_the_order_of_entry():
    """The job that reached the threshold first comes first there, though it was submitted last."""
    policy = LeastAttainedService(threshold=100.0)
    first, second = asking("first", 8, attained=99.0), asking("second", 8, attained=100.0)
    allocate(policy, first, second)

    assert numbers(allocate(policy, replace(first, attained=500.0), second)) == {"second": 8}


def test_the_node_with_most_free_devices_is_taken_first():
    """Of equal ones the first; a second node has the rest."""
    placements = allocate(LeastAttainedService(), asking("a", 1), asking("b", 5))
    assert placements == {"a": (("gpu-0", 1),), "b": (("gpu-1", 4), ("gpu-0", 1))}
