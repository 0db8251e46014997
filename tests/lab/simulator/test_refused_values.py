"""What the simulator cannot work with: the error names it, and what is allowed."""

import numpy as np
import pytest

from lab.simulator.applications import Application, Epochs
from lab.simulator.capacity import Capacity
from lab.simulator.record import summary
from lab.simulator.rules import Rules
from lab.simulator.simulation import simulate
from lab.simulator.single_job import most_nodes
from lab.simulator.workloads import Arrival
from scheduler.goodput import Limits
from scheduler.nodes import Cluster
from scheduler.policies import POLICIES
from tests.lab.simulator.tiny import tiny_application, tiny_step_times

HERE = frozenset("a")


def step_time(*shape, local):
    """The step time of the tiny model."""
    return tiny_application().step_time("gpu", shape, local)


def without_noise():
    """A model of which nothing is known in an epoch."""
    epochs = Epochs(np.ones(2), np.ones(2), np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    return Application("made", {"gpu": tiny_step_times()}, {4: epochs})


def simulated(*arrivals, kinds=("gpu",)):
    """The simulation of jobs on two devices."""
    cluster = Cluster.of([(kind, 2 // len(kinds), 1) for kind in kinds])
    applications = {"tiny": tiny_application(kinds=kinds)}
    return simulate(arrivals, applications, POLICIES["tiresias"](), cluster, Rules())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: step_time(1, local=9), "tiny: local batch"),
        (without_noise, "an epoch with batches of 4 has neither gradient nor noise"),
        (
            lambda: most_nodes(Limits(64, 320, 8, 100), 16, 41),
            "nodes of 41 devices: the largest batch, 320 samples, has less",
        ),
        (lambda: Capacity(((1.0, HERE),)), "first change is at 1 s: it must be at 0 s"),
        (lambda: Capacity.of_events([(0, "a", True), (4, "a", True)]), "'a' joins at 4 s, where it is there"),
        (
            lambda: simulated(Arrival("a", 0, "huge", 1, 4)),
            "job 'a' trains 'huge'; the applications are tiny",
        ),
        (
            lambda: simulated(Arrival("a", 0, "tiny", 2, 4), kinds=("slow", "fast")),
            "job 'a' was given devices of several kinds: fast, slow",
        ),
        (
            lambda: simulated(*(Arrival("a", submitted, "tiny", 1, 4) for submitted in (0, 5))),
            "two jobs are called 'a'",
        ),
        (lambda: summary([], [], devices=4), "no jobs"),
    ],
)
def test_what_cannot_be_is_named(call, said):
    """Applications, capacities, and what is asked of a simulation."""
    with pytest.raises(ValueError, match=said):
        call()
