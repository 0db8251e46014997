"""Sia's configurations, values and integer programme."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.noise import Noise
from scheduler.allocation import Allocation, devices
from scheduler.goodput import Goodput, Limits
from scheduler.job import Job
from scheduler.nodes import Cluster
from scheduler.policies.base import Round
from scheduler.policies.sia import Configuration, Sia, choose, configurations
from tests.scheduler.policies.rounds import THROUGHPUT, jobs, mixed_clusters, play

MIXED = Cluster.of([("slow", 2, 4), ("fast", 1, 8)])
FAST = replace(THROUGHPUT, gradient_per_sample=THROUGHPUT.gradient_per_sample / 10)
GOODPUT = Goodput(THROUGHPUT, Noise(1.0, 5e3), Limits(128, 4096, 32, 512))


def job(name="a", **others):
    """A job of some age."""
    return replace(Job(name, 0.0, age=6000.0, most_devices=1), **others)


def allocate(*jobs, cluster=MIXED, **before):
    """The allocation of a new policy, where jobs had some placements before."""
    return Sia().allocate(Round(6000.0, jobs, cluster, Allocation(before)))


def test_configurations_are_parts_of_a_node_and_whole_nodes():
    """Powers of two within a node, then whole nodes, kind by kind."""
    found = configurations(Cluster.of([("slow", 3, 4), ("fast", 2, 6)]))
    assert found == [
        *(Configuration("slow", *its) for its in ((1, 1), (1, 2), (1, 4), (2, 8), (3, 12))),
        *(Configuration("fast", *its) for its in ((1, 1), (1, 2), (1, 4), (1, 6), (2, 12))),
    ]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), jobs=st.integers(1, 3))
def test_no_choice_of_configurations_costs_less(data, jobs):
    """The sum of costs is the least of all choices that fit, a job that waits costing 1.1."""
    choices = configurations(Cluster.of([("slow", 1, 2), ("fast", 2, 1)]))
    cost = st.integers(20, 130).map(lambda hundredths: hundredths / 100)
    costs = np.array([[data.draw(cost) for _ in choices] for _ in range(jobs)])
    free = {"slow": 2, "fast": data.draw(st.integers(0, 2))}

    def total(chosen):
        return sum(1.1 if one is None else costs[row, one] for row, one in enumerate(chosen))

    def fits(chosen):
        used = dict.fromkeys(free, 0)
        for one in chosen:
            if one is not None:
                used[choices[one].kind] += choices[one].devices
        return all(used[kind] <= free[kind] for kind in free)

    found = choose(costs, choices, free)
    every = itertools.product([None, *range(len(choices))], repeat=jobs)

    assert fits(found)
    assert total(found) == pytest.approx(min(total(one) for one in every if fits(one)), rel=2e-4)


def test_a_job_has_the_kind_where_its_goodput_is_larger():
    """It is known on both kinds, and ten times as fast on one."""
    known = {"slow": GOODPUT, "fast": replace(GOODPUT, throughput=FAST)}
    ((node, _),) = allocate(job(goodputs=known))["a"]
    assert node == "fast-0"


@pytest.mark.parametrize(("speeds", "kind"), [((1.0, 3.0), "fast"), ((3.0, 1.0), "slow")])
def test_the_goodput_on_an_unknown_kind_follows_the_speeds_of_single_devices(speeds, kind):
    """A job that knows slow devices goes where one device is said to be faster."""
    speeds = dict(zip(("slow", "fast"), speeds, strict=True))
    ((node, _),) = allocate(job(goodputs={"slow": GOODPUT}, speeds=speeds))["a"]
    assert node.startswith(kind)


NOISY = replace(GOODPUT, noise=Noise(1.0, 1e6))
SMALL = replace(NOISY, throughput=replace(FAST, within_base=0.0), limits=replace(GOODPUT.limits, largest=128))


@pytest.mark.parametrize(
    ("its", "before", "number"),
    [
        # It may have more, but its goodput on these is not known on any kind.
        ({"most_devices": 8}, {}, 1),
        # Alone it has the most devices that it can use.
        ({"goodputs": {"fast": NOISY}, "most_devices": 4}, {}, 4),
        # Eight are planned for with the least batch each, though the user's batch is too small for so many.
        ({"goodputs": {"fast": SMALL}, "most_devices": 8}, {}, 8),
        # Twice the devices are worth a restart, but not to a job that has lost most of its time by them.
        ({"goodputs": {"fast": NOISY}, "most_devices": 2, "restart_cost": 80.0}, {"a": (("fast-0", 1),)}, 2),
        (
            {"goodputs": {"fast": NOISY}, "most_devices": 2, "restarts": 60, "restart_cost": 80.0},
            {"a": (("fast-0", 1),)},
            1,
        ),
    ],
)
def test_a_job_has_the_devices_of_which_it_makes_use(its, before, number):
    """As far as that is known, and where they are worth a restart."""
    assert devices(allocate(job(**its), **before)["a"]) == number


def test_whole_nodes_go_to_the_jobs_with_the_most_devices():
    """A job that pauses on two whole nodes has these, one on a device what is free, going round the nodes."""
    cluster = Cluster.of([("slow", 3, 4)])
    before = {"small": (("slow-0", 1),), "wide": (("slow-1", 4), ("slow-2", 4))}
    placed = allocate(job("small", paused=True), job("wide", paused=True), cluster=cluster, **before)

    assert placed["wide"] == (("slow-0", 4), ("slow-1", 4))
    assert placed["small"] == (("slow-2", 1),)


@settings(max_examples=40, deadline=None)  # a programme for each round takes its time
@given(mixed_clusters.flatmap(lambda cluster: st.tuples(st.just(cluster), jobs(cluster.kinds))), st.data())
def test_a_job_that_pauses_keeps_its_configuration(case, data):
    """While a change goes on, kind and number of devices stay, though they may move to other nodes."""
    policy = Sia()
    for at, allocation in play(policy, *case):
        paused = {job.name for job in at.jobs if allocation[job.name] and data.draw(st.booleans())}
        present = [replace(job, paused=job.name in paused, age=job.age + 60) for job in at.jobs]
        after = policy.allocate(Round(at.now + 60, present, at.cluster, allocation))
        for name in paused:
            kinds = {at.cluster.by_name[node].kind for node, _ in (*after[name], *allocation[name])}
            assert len(kinds) == 1
            assert devices(after[name]) == devices(allocation[name])
