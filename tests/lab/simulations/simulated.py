"""Simulations of the tiny model, and the page about them."""

from pathlib import Path

from lab.simulations.page import write_simulations_page
from lab.simulations.results import Outcome
from lab.simulator.fairness import fair_shares
from lab.simulator.rules import Rules
from lab.simulator.simulation import simulate
from lab.simulator.workloads import Arrival
from scheduler.nodes import Cluster
from scheduler.policies import POLICIES
from tests.lab.simulator.tiny import tiny_application

CLUSTER = Cluster.of([("gpu", 2, 2)])
ARRIVALS = [Arrival(f"job-{i}", 13 * i, "tiny", 1 + i % 3, 4 + i) for i in range(12)]


def outcome(policy, arrivals=ARRIVALS):
    """The outcome of a simulation on two nodes of two devices."""
    applications = {"tiny": tiny_application()}
    for name in {arrival.application for arrival in arrivals} - {"tiny"}:
        applications[name] = tiny_application()
        applications[name].name = name
    lives = simulate(arrivals, applications, POLICIES[policy](), CLUSTER, Rules())
    shares = fair_shares(lives, arrivals, applications, POLICIES[policy](), CLUSTER, Rules())
    return Outcome.of(lives, shares, CLUSTER.devices)


def write_page(path, policies, arrivals=ARRIVALS, workloads=("mine/w.csv",), published=None):
    """Write the page of simulations under policies, and return their outcomes by policy."""
    outcomes = {policy: outcome(policy, arrivals) for policy in policies}
    figures = {
        policy: {
            str(Path(workload)): {**its.figures, "published_mean_completion_s": published}
            for workload in workloads
        }
        for policy, its in outcomes.items()
    }
    by_path = {Path(name): outcomes for name in workloads}
    write_simulations_page(by_path, figures, CLUSTER, dict.fromkeys(figures, Rules()), path)
    return outcomes
