"""Optimus: one device for each job, and further ones where they save the most time."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.allocation import devices
from scheduler.nodes import Cluster
from scheduler.policies.optimus import Optimus
from tests.scheduler.policies import rounds
from tests.scheduler.policies.rounds import asking, clusters, jobs, numbers, play

CLUSTER = Cluster.of([("gpu", 2, 4)])


def lasting(name, seconds, most=8):
    """A job that takes so many seconds on 1, 2, ... devices."""
    return replace(asking(name, most), devices=None, seconds_left=lambda number: seconds[number - 1])


allocate = partial(rounds.allocate, Optimus(), cluster=CLUSTER)


@given(clusters.flatmap(lambda cluster: st.tuples(st.just(cluster), jobs(cluster.kinds))))
def test_no_other_job_would_save_more(case):
    """A device moved from one job to another, both with some, never saves time where savings diminish."""
    for at, allocation in play(Optimus(), *case):
        number = {job.name: devices(allocation[job.name]) for job in at.jobs}
        lost = [
            job.seconds_left(number[job.name] - 1) - job.seconds_left(number[job.name])
            for job in at.jobs
            if number[job.name] > 1
        ]
        won = [
            job.seconds_left(number[job.name]) - job.seconds_left(number[job.name] + 1)
            for job in at.jobs
            if 0 < number[job.name] < job.most_devices
        ]
        assert max(won, default=0.0) <= min(lost, default=float("inf")) + 1e-9


@given(clusters.flatmap(lambda cluster: st.tuples(st.just(cluster), jobs(cluster.kinds))))
def test_the_jobs_submitted_first_have_a_device(case):
    """As many jobs have devices as there are devices, in the order of submission."""
    for at, allocation in play(Optimus(), *case):
        served = [bool(allocation[job.name]) for job in at.jobs]
        assert served == [place < at.cluster.devices for place in range(len(served))]


@pytest.mark.parametrize(
    ("jobs", "most", "expected"),
    [
        # Of three more devices the slower job gets two, then its next saves less than the other's first.
        ([("fast", [50] + [40] * 7), ("slow", [100, 60, 40] + [35] * 5)], 5, {"slow": 3, "fast": 2}),
        # A job does not get a device with which it would not end sooner.
        ([("a", [10, 5, 5, 1, 1, 1, 1, 1])], 8, {"a": 2}),
        # Of equal savings the first job has the next device.
        ([("a", [10, 5, 5]), ("b", [10, 5, 5])], 3, {"a": 2, "b": 1}),
    ],
)
def test_devices_go_where_they_save_the_most(jobs, most, expected):
    """And stay free where they save nothing; the order of submission decides among equals."""
    its = [lasting(name, seconds, len(seconds)) for name, seconds in jobs]
    assert numbers(allocate(*its, cluster=Cluster.of([("gpu", 1, most)]))) == expected
