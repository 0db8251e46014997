"""Elastic weighted fair sharing: shares by weight, and admissions that spare larger weights."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from scheduler.allocation import devices
from scheduler.nodes import Cluster
from scheduler.policies.weighted_fair_sharing import WeightedFairSharing, fair_shares
from tests.scheduler.policies import rounds
from tests.scheduler.policies.rounds import asking, play, weighted

NODE = Cluster.of([("gpu", 1, 4)])
NODES = Cluster.of([("gpu", 2, 4)])


allocate = partial(rounds.allocate, WeightedFairSharing(), cluster=NODE)


@given(weighted())
def test_a_larger_weight_never_has_less(case):
    """A job that runs with less than it asks for has as many devices as any of smaller weight, or more."""
    for at, allocation in play(WeightedFairSharing(), *case):
        for job in at.jobs:
            if 0 < devices(allocation[job.name]) < job.devices:
                smaller = [other for other in at.jobs if other.weight < job.weight]
                assert all(
                    devices(allocation[other.name]) <= devices(allocation[job.name]) for other in smaller
                )


@given(weighted())
def test_no_device_is_free_that_a_job_could_use(case):
    """Either all devices are in use, or every job has what it asks for."""
    for at, allocation in play(WeightedFairSharing(), *case):
        number = {job.name: devices(allocation[job.name]) for job in at.jobs}
        assert sum(number.values()) == at.cluster.devices or all(
            number[job.name] == job.devices for job in at.jobs
        )


@given(weighted())
def test_jobs_are_admitted_by_weight_at_the_cost_of_no_larger_one(case):
    """Jobs are made smaller for one of their weight or a larger one, and none is suspended.

    No job has devices while one of larger weight, or of the same submitted before, has never had any.
    """
    for at, allocation in play(WeightedFairSharing(), *case):
        assert all(allocation[job] for job in at.allocation.placements)
        admitted = [job.weight for job in at.jobs if not at.allocation[job.name] and allocation[job.name]]
        for job in at.jobs:
            if devices(allocation[job.name]) < devices(at.allocation[job.name]):
                assert max(admitted, default=0.0) >= job.weight
        ranked = sorted(at.jobs, key=lambda job: -job.weight)
        queued = [bool(allocation[job.name]) for job in ranked if not at.allocation[job.name]]
        assert queued == sorted(queued, reverse=True)


@given(weighted(), st.integers(8, 40))
def test_nobody_could_be_given_more_fairly(case, total):
    """No job is so far ahead of another that it could give it a device and still be ahead."""
    _, chosen = case
    shares = fair_shares(chosen, {job.name: 1 for job in chosen}, total)
    for giver in chosen:
        for taker in chosen:
            if shares[giver.name] > 1 and shares[taker.name] < taker.devices:
                assert (shares[giver.name] - 1) / giver.weight <= shares[taker.name] / taker.weight


@given(weighted(), st.integers(8, 40), st.data())
def test_a_job_that_leaves_costs_nobody_a_device(case, total, data):
    """Shares of the others only grow, unlike those by largest remainders."""
    _, chosen = case
    gone = data.draw(st.sampled_from(chosen))
    stay = [job for job in chosen if job is not gone]
    before = fair_shares(chosen, {job.name: 1 for job in chosen}, total)
    after = fair_shares(stay, {job.name: 1 for job in stay}, total)

    assert all(after[job.name] >= before[job.name] for job in stay)


def test_a_job_that_shrinks_leaves_nodes():
    """It gives up devices where it has the fewest, and the new job has them all on that node."""
    old, new = asking("old", 8), asking("new", 4)
    before = {"old": (("gpu-0", 3), ("gpu-1", 4))}

    assert allocate(old, new, before=before, cluster=NODES) == {
        "old": (("gpu-1", 4),),
        "new": (("gpu-0", 4),),
    }


def test_a_job_that_grows_stays_on_its_node():
    """Free devices beside it come before those of an emptier node."""
    before = {"a": (("gpu-1", 2),)}
    assert allocate(asking("a", 4), before=before, cluster=NODES) == {"a": (("gpu-1", 4),)}
