"""Rounds of a cluster whose jobs come, train and go, for tests of any policy."""

from dataclasses import replace

from hypothesis import strategies as st

from idl.noise import Noise
from scheduler.allocation import Allocation, devices
from scheduler.goodput import Goodput, Limits
from scheduler.job import Job
from scheduler.nodes import Cluster, Node
from scheduler.policies import POLICIES
from scheduler.policies.base import Round
from scheduler.throughput import Throughput

INTERVAL = 60
THROUGHPUT = Throughput(0.05, 0.002, 0.2, 0.01, 0.04, 0.003, 2.0)

clusters = st.lists(st.integers(1, 5), min_size=1, max_size=5).map(
    lambda sizes: Cluster(tuple(Node(f"gpu-{i}", "gpu", size) for i, size in enumerate(sizes)))
)
mixed_clusters = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8)), min_size=2, max_size=3).map(
    lambda sizes: Cluster.of([(f"kind-{i}", nodes, size) for i, (nodes, size) in enumerate(sizes)])
)

MIXED = [name for name, policy in POLICIES.items() if policy.mixes]
"""The policies for clusters of several kinds of devices."""


def asking(name, number=1, submitted=0.0, **others):
    """A job whose user asks for a number of devices."""
    return Job(name, submitted, 0.0, most_devices=number, devices=number, batch=256, **others)


@st.composite
def jobs(draw, kinds):
    """Jobs of which everything is known that a policy may ask for, but a goodput in some only."""
    found = []
    for number in range(draw(st.integers(1, 8))):
        work, noise = draw(st.floats(10.0, 1e5)), draw(st.floats(1.0, 1e5))
        wanted = draw(st.integers(1, 8))
        goodput = Goodput(THROUGHPUT, Noise(1.0, noise), Limits(128, 4096, 32, 512))
        found.append(
            replace(
                asking(f"job-{number}", wanted, float(draw(st.integers(0, 300)))),
                goodputs=dict.fromkeys(kinds, goodput) if draw(st.booleans()) else {},
                seconds_left=lambda n, work=work: work / n + 20.0 * n,
                iterations_per_second=lambda kind, work=work: 1e4 / work + len(kind),
            )
        )
    return sorted(found, key=lambda job: job.submitted)


@st.composite
def weighted(draw):
    """A cluster, and jobs of several weights."""
    cluster = draw(clusters)
    weights = st.sampled_from([1.0, 2.5, 5.0, 10.0])
    return cluster, [replace(job, weight=draw(weights)) for job in draw(jobs(cluster.kinds))]


def allocate(policy, *jobs, cluster, before=None):
    """The placements that a policy chooses for jobs, some of which had devices before."""
    return policy.allocate(Round(60.0, jobs, cluster, Allocation(before or {}))).placements


def numbers(placements):
    """The number of devices of each job."""
    return {job: devices(placement) for job, placement in placements.items()}


def play(policy, cluster, jobs, rounds=8, attained=60.0, lose=False):
    """Yield each round and its allocation; jobs come when they are submitted, and soon one goes each round.

    Args:
        jobs: The jobs, in order of submission.
        attained: Device-seconds that a job gets for each of its devices in each round.
        lose: Let another node of several be away in each round.
    """
    allocation, had = Allocation(), dict.fromkeys((job.name for job in jobs), 0.0)
    for number in range(1, rounds + 1):
        now = float(INTERVAL * number)
        for job in jobs:
            had[job.name] += attained * devices(allocation[job.name])
        present = [
            replace(job, age=now - job.submitted, attained=had[job.name])
            for place, job in enumerate(jobs)
            if job.submitted <= now and place >= number - 4
        ]
        if not present:
            continue
        there = cluster
        if lose and len(cluster.nodes) > 1:
            away = number % len(cluster.nodes)
            there = Cluster(cluster.nodes[:away] + cluster.nodes[away + 1 :])
        stay = {
            job.name for job in present if {node for node, _ in allocation[job.name]} <= there.by_name.keys()
        }
        before = Allocation({name: allocation[name] for name in sorted(stay)})
        at = Round(now, present, there, before)
        allocation = policy.allocate(at)
        yield at, allocation
