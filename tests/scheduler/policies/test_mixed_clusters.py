"""What holds of the policies for clusters of several kinds of devices, whatever jobs come and go."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.allocation import devices
from scheduler.policies import POLICIES
from scheduler.policies.base import Round
from tests.scheduler.policies.rounds import MIXED, jobs, mixed_clusters, play

cases = mixed_clusters.flatmap(lambda cluster: st.tuples(st.just(cluster), jobs(cluster.kinds)))
few = settings(max_examples=40, deadline=None)  # a programme for each round takes its time


def kinds_of(cluster, placement):
    """The kinds of the devices of a placement."""
    return {cluster.by_name[node].kind for node, _ in placement}


@pytest.mark.ci
@pytest.mark.parametrize("name", MIXED)
@few
@given(case=cases)
def test_a_job_is_on_one_kind_at_a_time(name, case):
    """Devices of two kinds would wait for each other."""
    for at, allocation in play(POLICIES[name](), *case):
        assert all(len(kinds_of(at.cluster, its)) == 1 for its in allocation.placements.values())


@few
@given(case=cases, data=st.data())
def test_a_job_that_pauses_keeps_its_configuration_under_sia(case, data):
    """While a change goes on, kind and number of devices stay, though they may move to other nodes."""
    cluster, its = case
    policy = POLICIES["sia"]()
    for at, allocation in play(policy, cluster, its):
        paused = {job.name for job in at.jobs if allocation[job.name] and data.draw(st.booleans())}
        present = [replace(job, paused=job.name in paused, age=job.age + 60) for job in at.jobs]
        after = policy.allocate(Round(at.now + 60, present, cluster, allocation))
        for name in paused:
            assert kinds_of(cluster, after[name]) == kinds_of(cluster, allocation[name])
            assert devices(after[name]) == devices(allocation[name])
