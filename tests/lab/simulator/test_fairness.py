"""Finish-time fairness, against what is worked out by hand on the tiny model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.simulator.fairness import FairShare, fair_shares, isolated_completion, presence
from lab.simulator.record import Life
from lab.simulator.rules import JobLimits, Rules
from lab.simulator.simulation import simulate
from lab.simulator.workloads import Arrival
from scheduler.nodes import Cluster
from scheduler.policies import POLICIES
from tests.lab.simulator.tiny import tiny_application

CLUSTER, PACKED = Cluster.of([("gpu", 2, 1)]), Cluster.of([("gpu", 2, 2)])


def arrival(name="a", submitted=0, devices=2, batch=16):
    """A job's submission."""
    return Arrival(name, submitted, "tiny", devices, batch)


def isolated(of, devices=2, policy="tiresias", limits=None, cluster=CLUSTER):
    """The completion time of a job alone on some of the devices."""
    return isolated_completion(of, tiny_application(limits), devices, POLICIES[policy](), cluster, Rules())


def test_rho_is_against_a_cluster_of_the_fair_share():
    """Two jobs want both devices; the first shares its whole life with the second, which is alone later.

    On both devices a job takes a pause of 30 s and 18 s for each epoch, so that they end at 126 s and 246 s.
    The first's share is 1/2 of the cluster, one device, on which the epochs take 66 s after the pause.
    The second contends with 1.5 jobs on average, and its share is rounded up to both devices.
    """
    arrivals = [arrival("a"), arrival("b")]
    applications = {"tiny": tiny_application()}
    lives = simulate(arrivals, applications, POLICIES["tiresias"](), CLUSTER, Rules())
    shares = fair_shares(lives, arrivals[::-1], applications, POLICIES["tiresias"](), CLUSTER, Rules())

    assert [life.completion for life in lives] == [126, 246]
    assert shares == [FairShare(2.0, 1, 60 + 96), FairShare((246 + 126) / 246, 2, 126)]
    assert [share.rho(life) for share, life in zip(shares, lives, strict=True)] == [126 / 156, 246 / 126]


@pytest.mark.parametrize(
    ("of", "alone", "seconds"),
    [
        # It starts in the next round, at 120 s; on one device the pause and 40 s of epochs follow.
        (arrival(submitted=61, devices=1, batch=4), {}, 120 - 61 + 30 + 40),
        # It has at most what its user asks for: with one device, a share of two is no faster.
        (arrival(devices=1), {"devices": 1}, 156),
        (arrival(devices=1), {"devices": 2}, 156),
        # It has at most what its model can use, also where the policy chooses the number.
        (arrival(), {"policy": "pollux", "limits": JobLimits(most_devices=1, batch=4)}, 60 + 30 + 40),
        # Two devices of one node: 0.1 s for it, 0.05 s for each device, 0.5 s for each of its 2 samples.
        (arrival(batch=4), {"policy": "optimus", "cluster": PACKED}, 60 + 30 + 20 * 1.2),
    ],
)
def test_a_job_alone_takes_as_long_as_on_its_share(of, alone, seconds):
    """On few nodes, and with the devices that it asks for or can use."""
    assert isolated(of, **alone) == seconds


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=8))
def test_presence_counts_jobs_in_each_second(times):
    """Over a job's life it is the sum of the numbers of jobs in its seconds."""
    lives = [Life(str(i), "tiny", begin, ended=begin + age) for i, (begin, age) in enumerate(times)]
    numbers = [sum(life.submitted <= now < life.ended for life in lives) for now in range(80)]

    assert presence(lives) == [sum(numbers[life.submitted : life.ended]) for life in lives]
