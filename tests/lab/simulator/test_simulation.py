"""Simulations of several jobs: order of events, and workloads that cannot be simulated."""

import pytest

from lab.simulator.capacity import Capacity
from lab.simulator.rules import RULES, Rules
from lab.simulator.simulation import simulate
from lab.simulator.workloads import Arrival
from scheduler.nodes import Cluster
from scheduler.policies import POLICIES
from scheduler.policies.base import Policy
from tests.lab.simulator.tiny import tiny_application

CLUSTER = Cluster.of([("gpu", 2, 1)])


def run(*arrivals, policy="tiresias", cluster=CLUSTER, rules=None, capacity=None):
    """The lives of the arrivals' jobs."""
    applications = {"tiny": tiny_application()}
    policy = policy if isinstance(policy, Policy) else POLICIES[policy]()
    return simulate(arrivals, applications, policy, cluster, rules or Rules(), capacity)


def arrival(name="a", submitted=0, devices=1, batch=4, application="tiny"):
    """A job's submission."""
    return Arrival(name, submitted, application, devices, batch)


@pytest.mark.parametrize("policy", [name for name, its in POLICIES.items() if its.mixes])
def test_jobs_end_on_clusters_of_several_kinds(policy):
    """More jobs than devices, on two kinds, all end, and in the same way again."""
    applications = {"tiny": tiny_application(kinds=("slow", "fast"))}
    cluster = Cluster.of([("slow", 2, 1), ("fast", 1, 2)])
    arrivals = [arrival(f"job-{i}", 13 * i, devices=1 + i % 2, batch=8) for i in range(12)]
    first, second = (
        simulate(arrivals, applications, POLICIES[policy](), cluster, RULES["mixed"]) for _ in range(2)
    )

    assert first == second
    assert {node.split("-")[0] for life in first for _, its in life.placements for node, _ in its} == {
        "slow",
        "fast",
    }


def nodes(*names):
    """A set of names, as capacities have them."""
    return frozenset(names)


BOTH = nodes("gpu-0", "gpu-1")
LOST = ((0.0, BOTH), (100.0, nodes("gpu-1")))
MOVED = [(60, (("gpu-0", 1),)), (100, ()), (120, (("gpu-1", 1),))]


@pytest.mark.parametrize(
    ("changes", "rules", "batch", "placements", "losses", "ended"),
    [
        # It trains for 10 s on the first node, and for the rest of its 40 s on the second, after a pause.
        (LOST, Rules(), 4, MOVED, 1, 120 + 30 + 30),
        # Of these 10 s, the 3 s since the last checkpoint, at 7 s, are lost.
        (LOST, Rules(checkpoint=7), 4, MOVED, 1, 120 + 30 + 3 + 30),
        # With notice, the node is not given out in the round of 60 s already, 40 s before its loss.
        (LOST, Rules(notice=60), 4, [(60, (("gpu-1", 1),))], 0, 60 + 30 + 40),
        # The node that is lost at 200 s is left for the other one at 180 s; 16 samples take 33 s an epoch.
        (
            ((0.0, nodes("gpu-0")), (120.0, BOTH), (200.0, nodes("gpu-1"))),
            Rules(notice=20, restart_cost=60),
            16,
            [(60, (("gpu-0", 1),)), (180, (("gpu-1", 1),))],
            0,
            None,
        ),
        # The node comes at 200 s, and is given out in the round after.
        (((0.0, nodes()), (200.0, nodes("gpu-0"))), Rules(), 4, [(240, (("gpu-0", 1),))], 0, 240 + 30 + 40),
    ],
    ids=["loss", "checkpoint", "notice", "notice later", "no node"],
)
def test_a_job_follows_the_nodes_that_are_there(changes, rules, batch, placements, losses, ended):
    """It goes on elsewhere when its node is lost, leaves one of which it has notice, and waits for one."""
    (life,) = run(arrival(batch=batch), rules=rules, capacity=Capacity(changes))

    assert (life.placements, life.losses, life.restarts) == (placements, losses, len(placements) // 2)
    assert ended in (None, life.ended)
