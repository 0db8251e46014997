"""What holds of every policy, whatever jobs come and go."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.allocation import devices
from scheduler.policies import POLICIES
from tests.scheduler.policies.rounds import MIXED, clusters, jobs, mixed_clusters, play

few = settings(max_examples=40, deadline=None)  # a search for good placements takes its time


def cases(clusters):
    """Clusters with jobs."""
    return clusters.flatmap(lambda cluster: st.tuples(st.just(cluster), jobs(cluster.kinds)))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "cases"),
    [
        *(pytest.param(name, cases(clusters), id=name) for name in POLICIES),
        *(pytest.param(name, cases(mixed_clusters), id=f"{name}, several kinds") for name in MIXED),
    ],
)
@few
@given(data=st.data())
def test_allocations_fit_the_cluster_and_its_jobs_and_repeat(name, cases, data):
    """No node has more devices in use than it has, nor any while it is away; no job more than it can use.

    A job has devices of one kind at a time, as those of two kinds would wait for each other.
    Two objects of a policy that see the same rounds choose the same placements.
    """
    case = data.draw(cases)
    first, second, losing = (list(play(POLICIES[name](), *case, lose=lose)) for lose in (False, False, True))
    for at, allocation in first + losing:
        allocation.check(at.cluster)
        nodes = at.cluster.by_name
        assert all(len({nodes[node].kind for node, _ in its}) == 1 for its in allocation.placements.values())
        most = {job.name: job.most_devices for job in at.jobs}
        assert all(devices(placement) <= most[job] for job, placement in allocation.placements.items())
    chosen, again = ([allocation.placements for _, allocation in played] for played in (first, second))
    assert chosen == again


@pytest.mark.ci
@pytest.mark.parametrize("name", POLICIES)
@few
@given(case=cases(clusters))
def test_devices_are_used_while_jobs_wait(name, case):
    """A job that would fit on all that is there leaves no cluster idle."""
    for at, allocation in play(POLICIES[name](), *case):
        if any(job.most_devices <= at.cluster.devices for job in at.jobs):
            assert allocation.placements


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cases"),
    [("tiresias", cases(clusters)), ("priority", cases(clusters)), ("gavel", cases(mixed_clusters))],
    ids=["tiresias", "priority", "gavel"],
)
@few
@given(data=st.data())
def test_a_job_has_what_it_asks_for_or_nothing(name, cases, data):
    """Under policies that do not resize there is nothing between."""
    for at, allocation in play(POLICIES[name](), *data.draw(cases)):
        assert all(devices(allocation[job.name]) in (0, job.devices) for job in at.jobs)
