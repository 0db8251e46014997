"""What the scheduler cannot work with: the error names it, and what is allowed."""

import math
from dataclasses import replace

import numpy as np
import pytest

from idl.noise import Noise
from scheduler.allocation import Allocation
from scheduler.autoscaling import scale_up
from scheduler.cluster import Cluster
from scheduler.goodput import Goodput, Limits
from scheduler.policies import POLICIES
from scheduler.policies.base import Round
from scheduler.policies.occupancy import Occupancy
from scheduler.policies.pollux import Pollux
from scheduler.simulator.applications import Application, Epochs, StepTimes
from scheduler.simulator.capacity import Capacity
from scheduler.simulator.record import Life, summary
from scheduler.simulator.rules import JobLimits, Rules
from scheduler.simulator.simulation import simulate
from scheduler.simulator.single_job import most_nodes
from scheduler.simulator.workloads import Arrival
from scheduler.throughput import Throughput, fit
from scheduler.throughput_curves import ThroughputCurves
from tests.scheduler.policies.rounds import THROUGHPUT, asking
from tests.scheduler.simulator.tiny import tiny_application, tiny_step_times

LIMITS = Limits(128, 4096, 32, 512)
GOODPUT = Goodput(THROUGHPUT, Noise(1.0, 1000.0), LIMITS)
ALIKE = Throughput(0.1, 0.01, 0.0, 0.0, 0.0, 0.0, 1.0)
NAMES = ("a", "b", "c")
HERE = frozenset("a")


def scaled(rates, nodes=1, target=0.5):
    """The nodes of a job with these rates."""
    return scale_up(np.array(rates), nodes, target=target)


def step_time(*shape, local):
    """The step time of the tiny model."""
    return tiny_application().step_time("gpu", shape, local)


def without_noise():
    """A model of which nothing is known in an epoch."""
    epochs = Epochs(np.ones(2), np.ones(2), np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    return Application("made", {"gpu": tiny_step_times()}, {4: epochs})


def of_one_node():
    """The step time of two nodes, where one alone was measured."""
    nothing = np.empty((0, 3)), np.empty((0, 2))
    return StepTimes({(1,): tiny_step_times().placements[(1,)]}, nothing).at((1, 1), 2)


def allocated(policy, cluster=(("gpu", 2, 4),), **lacking):
    """An allocation for a job that asks for a device, and lacks something."""
    job = replace(asking("a", iterations_per_second=len), **lacking)
    return POLICIES[policy]().allocate(Round(60.0, [job], Cluster.of(cluster), Allocation()))


def simulated(*arrivals, kinds=("gpu",)):
    """The simulation of jobs on two devices."""
    cluster = Cluster.of([(kind, 2 // len(kinds), 1) for kind in kinds])
    applications = {"tiny": tiny_application(kinds=kinds)}
    return simulate(arrivals, applications, POLICIES["tiresias"](), cluster, Rules())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: replace(THROUGHPUT, gradient_base=-1.0), "gradient_base"),
        (lambda: replace(THROUGHPUT, across_base=math.inf), "across_base"),
        (lambda: replace(THROUGHPUT, overlap=0.5), "overlap"),
        (lambda: replace(THROUGHPUT, overlap=11), "overlap"),
        (lambda: fit({}), "no measurements"),
        (lambda: fit({(2, 1, 8): (1.0, 0.5)}), r"\(2, 1, 8\)"),
        (lambda: fit({(1, 1, 0): (1.0, 0.5)}), r"\(1, 1, 0\)"),
        (lambda: fit({(1, 1, 8): (1.0, 1.0)}), "1.0 s of synchronisation"),
        (lambda: fit({(1, 1, 8): (math.inf, 1.0)}), "inf s"),
        (lambda: fit({(1, 1, 8): (1.0, -0.1)}), "-0.1 s of synchronisation"),
        (lambda: ThroughputCurves([ALIKE] * 2, 0), "2 replicas on 0 nodes"),
        (lambda: ThroughputCurves([ALIKE] * 2, 3), "2 replicas on 3 nodes"),
        (lambda: Limits(0, 10, 1, 5), "whole batches from 0 to 10"),
        (lambda: Limits(10, 9, 1, 5), "whole batches from 10 to 9"),
        (lambda: Limits(1, 10, 0, 5), "local batches from 0 to 5"),
        (lambda: Limits(1, 10, 6, 5), "local batches from 6 to 5"),
        (lambda: replace(GOODPUT, total=4097), "4097 samples: must be from 1 to 4096"),
        (lambda: replace(GOODPUT, noise=Noise(0.0, 0.0)), "no noise scale"),
        (lambda: GOODPUT.best(0, 0), "at least one on each node"),
        (lambda: GOODPUT.best(2, 1), "at least one on each node"),
        (lambda: GOODPUT.best([1, 3], [1, 2]), "at least one on each node"),
        (lambda: scaled([]), "rates .*: give a finite number above 0"),
        (lambda: scaled([1.0, 0.0]), "rates .*: give a finite number above 0"),
        (lambda: scaled([1.0, np.inf]), "rates .*: give a finite number above 0"),
        (lambda: scaled([1.0, 2.0], nodes=3), "3 nodes: there are rates for 1 to 2"),
        (lambda: scaled([1.0, 2.0], nodes=0), "0 nodes: there are rates for 1 to 2"),
        (lambda: scaled([1.0, 2.0], target=0.7), "target 0.7: must be above 0 and at most 0.666"),
        (lambda: scaled([1.0, 2.0], target=0.0), "target 0.0: must be above 0"),
        (
            lambda: allocated("tiresias", devices=None),
            "job 'a' must ask for a number of devices under Tiresias",
        ),
        (
            lambda: allocated("priority", devices=None),
            "job 'a' must ask for a number of devices under priorities",
        ),
        (lambda: allocated("gavel", devices=None), "job 'a' must ask for a number of devices under Gavel"),
        (
            lambda: allocated("weighted_fair_sharing", devices=None),
            "job 'a' must ask for a number of devices under weighted fair",
        ),
        (
            lambda: allocated("gavel", iterations_per_second=None),
            "job 'a' must have a known speed under Gavel",
        ),
        (
            lambda: allocated("optimus", most_devices=4),
            "job 'a' must have a known remaining time under Optimus",
        ),
        (lambda: allocated("pollux", (("t4", 1, 4), ("a100", 1, 8))), "alike; the cluster has t4, a100"),
        (lambda: Pollux(float("nan")), "power nan of the mean: must be finite"),
        (lambda: Occupancy([2, 2], 16).find_across(5), "1 devices more"),
        (lambda: step_time(1, local=9), "tiny: local batch"),
        (lambda: step_time(1, local=1), "tiny: local batch"),
        (lambda: step_time(2, 2, 2, local=9), "tiny: local batch"),
        (lambda: step_time(9, 9, local=2), "tiny: local batch"),
        (of_one_node, "2 measured step times are too few"),
        (without_noise, "an epoch with batches of 4 has neither gradient nor noise"),
        (lambda: tiny_application().noise(17, 0), "17 samples; measured are 4 to 16"),
        (lambda: tiny_application(JobLimits(epochs=3)), "a job has 3 epochs; 2 were measured"),
        (
            lambda: most_nodes(Limits(64, 320, 8, 100), 16, 41),
            "nodes of 41 devices: the largest batch, 320 samples, has less",
        ),
        (lambda: Capacity(((1.0, HERE),)), "first change is at 1 s: it must be at 0 s"),
        (lambda: Capacity(((0.0, frozenset()),)), "no node is ever there"),
        (lambda: Capacity(((0.0, HERE), (5.0, frozenset())), 5.0), "at 5 s follows one at 5 s"),
        (lambda: Capacity.of_events([(0, "a", True), (4, "a", True)]), "'a' joins at 4 s, where it is there"),
        (lambda: Capacity.of_events([(3, "a", False)]), "'a' is lost at 3 s, where it is gone"),
        (lambda: Capacity.of_counts([(0, 1), (0, 2)], NAMES), "two numbers of nodes at 0 s"),
        (lambda: Capacity.of_failures(NAMES, 0.0, 1.0, 1), "mean time between failures 0 s: must be above 0"),
        (lambda: Capacity.of_failures(NAMES, 1.0, math.inf, 1), "time to repair inf s: must be above 0"),
        (
            lambda: simulated(Arrival("a", 0, "huge", 1, 4)),
            "job 'a' trains 'huge'; the applications are tiny",
        ),
        (lambda: simulated(Arrival("a", 0, "tiny", 3, 4)), "job 'a' asks for 3 devices; the cluster has 2"),
        (
            lambda: simulated(Arrival("a", 0, "tiny", 1, 17)),
            "job 'a' asks for batches of 17 samples; tiny was measured with 4 to 16",
        ),
        (
            lambda: simulated(Arrival("a", 0, "tiny", 2, 4), kinds=("slow", "fast")),
            "job 'a' was given devices of several kinds: fast, slow",
        ),
        (
            lambda: simulated(*(Arrival("a", submitted, "tiny", 1, 4) for submitted in (0, 5))),
            "two jobs are called 'a'",
        ),
        (lambda: Life("a", "tiny", 0, started=0, placements=[(0, ())]).spans, "job 'a' has not ended"),
        (lambda: summary([], [], devices=4), "no jobs"),
    ],
)
def test_what_cannot_be_is_named(call, said):
    """Models of jobs, clusters, and what the policies need to know."""
    with pytest.raises(ValueError, match=said):
        call()
