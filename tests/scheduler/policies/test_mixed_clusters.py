"""What holds of the policies for clusters of several kinds of devices, whatever jobs come and go."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.allocation import devices
from scheduler.cluster import Cluster
from scheduler.policies import POLICIES
from scheduler.policies.base import Round
from tests.scheduler.policies.rounds import jobs, play

MIXED = [name for name, policy in POLICIES.items() if policy.mixes]

clusters = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8)), min_size=2, max_size=3).map(
    lambda sizes: Cluster.of([(f"kind-{i}", nodes, size) for i, (nodes, size) in enumerate(sizes)])
)
cases = clusters.flatmap(lambda cluster: st.tuples(st.just(cluster), jobs(cluster.kinds)))
few = settings(max_examples=40, deadline=None)  # a programme for each round takes its time


def kinds_of(cluster, placement):
    """The kinds of the devices of a placement."""
    return {cluster.by_name[node].kind for node, _ in placement}


@pytest.mark.parametrize("name", MIXED)
@few
@given(case=cases)
def test_allocations_fit_the_cluster(name, case):
    """No node has more devices in use than it has."""
    for _, allocation in play(POLICIES[name](), *case):
        allocation.check(case[0])


@pytest.mark.parametrize("name", MIXED)
@few
@given(case=cases)
def test_a_job_is_on_one_kind_at_a_time(name, case):
    """Devices of two kinds would wait for each other."""
    for at, allocation in play(POLICIES[name](), *case):
        assert all(len(kinds_of(at.cluster, its)) == 1 for its in allocation.placements.values())


@pytest.mark.parametrize("name", MIXED)
@few
@given(case=cases)
def test_nodes_that_are_away_have_no_jobs(name, case):
    """While nodes come and go, devices are given out of those that are there."""
    for at, allocation in play(POLICIES[name](), *case, lose=True):
        allocation.check(at.cluster)


@pytest.mark.parametrize("name", MIXED)
@few
@given(case=cases)
def test_policies_repeat(name, case):
    """Two objects of a policy that see the same rounds choose the same placements."""
    first, second = (
        [dict(allocation.placements) for _, allocation in play(POLICIES[name](), *case)] for _ in range(2)
    )
    assert first == second


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


@few
@given(case=cases)
def test_a_job_has_all_the_devices_that_it_asks_for_under_gavel(case):
    """It has as many as its user wants, or none."""
    for at, allocation in play(POLICIES["gavel"](), *case):
        assert all(devices(allocation[job.name]) in (0, job.devices) for job in at.jobs)
