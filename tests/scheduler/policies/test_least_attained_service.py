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
