"""Pollux's policy: its fitness against the definition, its allocations against the rules and the optimum."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl.noise import Noise
from scheduler.allocation import Allocation, devices
from scheduler.goodput import Goodput, Limits
from scheduler.job import Job
from scheduler.nodes import Cluster
from scheduler.policies.base import Round
from scheduler.policies.pollux import Pollux, fitness
from scheduler.throughput import Throughput

# Fitted to measured steps of three models on T4 GPUs, rounded.
MODELS = (
    (Throughput(0.17, 0.058, 1.5, 0.012, 0.39, 0.001, 2.3), Limits(12, 384, 4, 8)),
    (Throughput(0.018, 0.0007, 0.088, 0.0025, 0.013, 0.0, 1.2), Limits(128, 4096, 32, 1024)),
    (Throughput(0.067, 0.0045, 0.32, 0.0054, 0.078, 0.0012, 2.7), Limits(200, 12800, 25, 200)),
)


def goodput(model, noise):
    """Return a goodput with a noise scale that is so many times the initial batch."""
    throughput, limits = MODELS[model]
    return Goodput(throughput, Noise(1.0, noise * limits.initial), limits)


goodputs = st.builds(goodput, st.integers(0, 2), st.sampled_from([0.3, 3.0, 30.0]))


@st.composite
def rounds(draw, most_jobs=8):
    """A round of up to some jobs on two to four nodes, after another round of the same policy."""
    cluster = Cluster.of([("t4", draw(st.integers(2, 4)), draw(st.sampled_from([2, 4])))])
    jobs = [
        Job(
            f"job-{place}",
            0.0,
            draw(st.integers(0, 20_000)),
            draw(st.sampled_from([1, 2, 4, 8, 16])),
            restarts=draw(st.integers(0, 20)),
            goodputs=draw(st.builds(dict) | st.builds(lambda one: {"t4": one}, goodputs)),
        )
        for place in range(draw(st.integers(1, most_jobs)))
    ]
    before = Allocation()
    if draw(st.booleans()):
        before = Pollux().allocate(Round(0.0, jobs[: draw(st.integers(1, len(jobs)))], cluster, before))
    return Round(60.0, jobs, cluster, before)


def test_fitness_worked_out_by_hand():
    """It is the harmonic mean of speedups by devices/nodes, 0 of a waiting job, each with 1e-3 more."""
    jobs = [Job(name, 0.0, 100.0, 4) for name in ("a", "b")]
    at = Round(0.0, jobs, Cluster.of([("t4", 2, 4)]), Allocation({"a": (("t4-0", 2),)}))
    # Nothing is known of them: two of eight devices are half of a fair share of four.
    assert fitness(at, at.allocation) == pytest.approx(2 / (1 / (0.5 / 4 + 1e-3) + 1 / 1e-3))
    both = Allocation({"a": (("t4-0", 2),), "b": (("t4-1", 4),)})
    assert fitness(at, both) == pytest.approx(2 / (1 / (0.5 / 4 + 1e-3) + 1 / (100 / 130 / 4 + 1e-3)))


def test_a_change_costs_more_after_many_restarts():
    """Another placement has max(age - 30 restarts, 0)/(age + 30) of its speedup."""
    moved = Allocation({"a": (("t4-1", 4),)})
    for restarts, factor in ((0, 300 / 330), (5, 150 / 330), (20, 0)):
        job = Job("a", 0.0, 300.0, 4, restarts=restarts)
        at = Round(0.0, [job], Cluster.of([("t4", 2, 4)]), Allocation({"a": (("t4-0", 4),)}))
        assert fitness(at, moved) == pytest.approx(factor * 0.5 / 4 + 1e-3)


powers = st.sampled_from([-10.0, -1.0, 0.0, 0.5, 1.0, 3.0])


@given(rounds(), powers, st.booleans())
def test_allocations_are_no_less_fit_than_to_change_nothing(at, power, avoid):
    """The present allocation is one of those that are compared, by whichever mean."""
    allocation = Pollux(power, avoid=avoid).allocate(at)
    assert fitness(at, allocation, power) >= fitness(at, at.allocation, power) * (1 - 1e-9)


@given(rounds())
def test_no_job_gains_from_devices_that_are_left_free(at):
    """With free devices of one node in addition to its own, or in their place, none would do better."""
    allocation = Pollux().allocate(at)
    least = fitness(at, allocation)
    for job in at.jobs:
        others = {name: its for name, its in allocation.placements.items() if name != job.name}
        used = Allocation(others).used()
        for node in at.cluster.nodes:
            for count in range(1, min(node.devices - used[node.name], job.most_devices) + 1):
                other = Allocation({**others, job.name: ((node.name, count),)})
                assert fitness(at, other) <= least * (1 + 1e-6)


@pytest.mark.ci
@pytest.mark.parametrize(("power", "clusters"), [(-1.0, 8), (0.0, 4), (1.0, 4)])
def test_allocations_are_close_to_the_best_of_all(power, clusters):
    """Of small clusters drawn at random, none is more than 2% less fit than the best allocation."""
    draw = random.Random(0)
    for _ in range(clusters):
        nodes, size = draw.choice([(2, 3), (2, 4), (3, 2)])
        cluster = Cluster.of([("t4", nodes, size)])
        jobs = [
            Job(
                f"job-{place}",
                0.0,
                draw.uniform(60, 20_000),
                draw.choice([2, 4, 8]),
                restarts=draw.randrange(4),
                goodputs={"t4": goodput(draw.randrange(3), 10 ** draw.uniform(-1, 2))},
            )
            for place in range(3)
        ]
        before = Allocation()
        if draw.random() < 0.5:
            earlier = [replace(job, goodputs={}, most_devices=draw.choice([1, 2])) for job in jobs]
            before = Pollux().allocate(Round(0.0, earlier, cluster, before))
        at = Round(60.0, jobs, cluster, before)
        best = max(fitness(at, allocation, power) for allocation in every_allocation(at))
        assert fitness(at, Pollux(power).allocate(at), power) >= 0.98 * best


def every_allocation(at):
    """Yield all allocations that keep the limits."""
    names = [node.name for node in at.cluster.nodes]
    shares = [
        [
            its
            for its in itertools.product(range(node.devices + 1), repeat=len(at.jobs))
            if sum(its) <= node.devices
        ]
        for node in at.cluster.nodes
    ]
    for columns in itertools.product(*shares):
        placements = {
            job.name: tuple((name, count) for name, count in zip(names, counts, strict=True) if count)
            for job, counts in zip(at.jobs, zip(*columns, strict=True), strict=True)
        }
        spanning = [node for its in placements.values() if len(its) > 1 for node, _ in its]
        if len(spanning) == len(set(spanning)) and all(
            devices(placements[job.name]) <= job.most_devices for job in at.jobs
        ):
            yield Allocation(placements)


@pytest.mark.parametrize(
    ("job", "nodes", "size", "before", "number"),
    [
        # Before anything is known of a job, it starts on as many devices as it may use.
        (Job("a", 0.0, 10.0, 1), 1, 4, 0, 1),
        # At the age of 0 its speedup counts nothing, and yet devices are better than none.
        (Job("a", 0.0, 0.0, 1), 1, 4, 0, 1),
        # A job that scales perfectly, as far as is known, has the devices of 16 of 18 nodes.
        (Job("a", 0.0, 1000.0, 64), 18, 1, 0, 16),
        # What it has does not count where it is more than the job can use.
        (Job("a", 0.0, 5000.0, 2), 1, 4, 4, 2),
    ],
)
def test_a_job_alone_has_the_devices_that_it_may_use(job, nodes, size, before, number):
    """From its arrival on, on 16 nodes at most."""
    cluster, had = Cluster.of([("t4", nodes, size)]), {"a": (("t4-0", before),)} if before else {}
    placement = Pollux().allocate(Round(0.0, [job], cluster, Allocation(had)))["a"]
    assert (devices(placement), len(placement)) == (number, min(number, nodes))
