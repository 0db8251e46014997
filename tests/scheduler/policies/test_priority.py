"""Strict priorities: order of descending weight, fixed numbers, no preemption."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.allocation import Allocation, devices
from scheduler.cluster import Cluster
from scheduler.policies.base import Round
from scheduler.policies.priority import Priority
from tests.scheduler.policies.rounds import asking, clusters, jobs, play

NODE = Cluster.of([("gpu", 1, 4)])


@st.composite
def weighted(draw):
    """A cluster, and jobs of several weights."""
    cluster = draw(clusters)
    weights = st.sampled_from([1.0, 5.0, 10.0])
    return cluster, [replace(job, weight=draw(weights)) for job in draw(jobs(cluster.kinds))]


def allocate(*jobs, before=None, passing=False):
    """The numbers of devices that the policy chooses."""
    chosen = Priority(passing=passing).allocate(Round(60.0, jobs, NODE, Allocation(before or {}))).placements
    return {job: devices(placement) for job, placement in chosen.items()}


@given(weighted())
def test_a_running_job_keeps_its_placement(case):
    """Nothing is preempted, moved or resized."""
    for at, allocation in play(Priority(), *case):
        assert all(allocation[job] == placement for job, placement in at.allocation.placements.items())


@given(weighted())
def test_a_job_has_what_it_asks_for_or_nothing(case):
    """There is nothing between."""
    for at, allocation in play(Priority(), *case):
        assert all(devices(allocation[job.name]) in (0, job.devices) for job in at.jobs)


@given(weighted())
def test_the_first_in_the_queue_waits_only_where_it_does_not_fit(case):
    """Of the jobs that wait, the one of the largest weight asks for more than is free."""
    for at, allocation in play(Priority(), *case):
        waiting = [job for job in at.jobs if not allocation[job.name] and job.devices <= at.cluster.devices]
        free = at.cluster.devices - sum(allocation.used().values())
        assert not waiting or max(waiting, key=lambda job: job.weight).devices > free


def test_the_largest_weight_starts_first():
    """Order of submission decides among equal ones."""
    assert allocate(asking("a", 2), asking("b", 2, weight=5.0), asking("c", 4)) == {"b": 2, "a": 2}


def test_a_job_that_would_fit_does_not_pass():
    """Devices stay idle while the next in order needs more, as in VirtualFlow's trace of three jobs."""
    before = {"1": (("gpu-0", 2),)}
    chosen = allocate(asking("1", 2), asking("2", 4, weight=10.0), asking("3", 2), before=before)
    assert chosen == {"1": 2}


def test_a_job_that_fits_passes_where_it_may():
    """What the next in order cannot use goes to the first that can."""
    before = {"1": (("gpu-0", 2),)}
    jobs = [asking("1", 2), asking("2", 4, weight=10.0), asking("3", 2), asking("4", 2, weight=5.0)]
    assert allocate(*jobs, before=before, passing=True) == {"1": 2, "4": 2}


def test_a_job_must_ask_for_a_number_of_devices():
    """Without one there is nothing to give."""
    with pytest.raises(ValueError, match="job 'a' must ask for a number of devices under priorities"):
        allocate(replace(asking("a"), devices=None))
