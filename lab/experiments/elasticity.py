"""Figures 10 to 12 of VirtualFlow: jobs with priorities on a cluster, with and without resizing.

Elastic weighted fair sharing is held against strict priorities (section 6.4). The jobs are simulated with
step times that were measured; nothing is trained. The models and devices are those of other people's
measurements, nearest to the paper's: cifar10 for its ResNet-56, imagenet for its ResNet-50, and bert. Nodes
have 4 devices. Three jobs arrive in the order of rising priority at a node; twenty at four nodes, 12 an hour
at random. The models, batches and priorities of these are random, and the batch fills the devices. To fit
hours, cifar10 is trained for 100 epochs, the others for one.

The paper's priorities are strict: jobs wait behind one that does not fit, and devices stay idle. So resizing
is held against priorities whose jobs may pass as well. Makespan and utilisation, the part of the devices that
jobs have, are from the first arrival to the last end. Device hours need not be equal: on fewer devices less
time goes to communication.

Example:
  evenpace lab experiment elasticity --traces pollux --seeds 1,2,3,4,5
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
from rich.console import Console

from evenpace.local.terminal import make_table
from idl.settings import Checked, Setting
from lab.experiments.scheduling_fields import Traces
from lab.fields import numbers
from lab.report import options_of
from lab.simulations.trace_files import PLAIN, read_applications
from lab.simulator.applications import Application
from lab.simulator.record import Life
from lab.simulator.rules import JobLimits, Rules
from lab.simulator.simulation import simulate
from lab.simulator.workloads import Arrival
from scheduler.nodes import Cluster
from scheduler.policies.base import Policy
from scheduler.policies.priority import Priority
from scheduler.policies.weighted_fair_sharing import WeightedFairSharing

STATIC, PASSING, ELASTIC = "priority", "priority, jobs may pass", "weighted_fair_sharing"
_POLICIES: dict[str, Callable[[], Policy]] = {
    STATIC: Priority,
    PASSING: partial(Priority, passing=True),
    ELASTIC: WeightedFairSharing,
}
_REDUCED = ("makespan_s", "median_completion_s", "median_queueing_s", "device_hours")
_LIMITS = {"cifar10": JobLimits(epochs=100), "imagenet": JobLimits(epochs=1), "bert": JobLimits(epochs=1)}
_NODE = Cluster.of([("gpu", 1, 4)])
_NODES = Cluster.of([("gpu", 4, 4)])
_PRIORITIES = (1.0, 5.0, 10.0)
_RESIZE_COST = 1  # seconds without progress after a start or a resize; the paper says less than one
_JOBS = 20
_GAP = 300.0  # seconds between arrivals, in the mean
# Rows of Table 3, of which each is as likely: a model with its batches, each with the devices that it fills.
_BERT = ("bert", ((24, 2), (48, 4), (96, 8), (192, 16)))
_MIX = (
    ("cifar10", ((128, 1), (256, 2))),
    ("imagenet", ((400, 2), (800, 4), (1600, 8), (3200, 16))),
    _BERT,  # CoLA
    _BERT,  # SST-2
)


@dataclass(frozen=True)
class ElasticityConfig(Checked):
    """The configuration of jobs with priorities on one cluster."""

    traces: Traces  # folder with cifar10, imagenet and bert
    seeds: Annotated[
        tuple[int, ...], numbers("seeds", "A trace of 20 jobs with each; medians.", "SEED,...", 0)
    ] = (1, 2, 3)
    # Seconds from one round of the policy to the next; the paper's acts at once.
    interval: Annotated[int, Setting("Seconds from round to round.", least=1)] = 5


def run(config: ElasticityConfig, console: Console) -> dict[str, Any]:
    """Simulate both traces under all policies, and print the figures beside the paper's.

    Returns, with times in seconds, `{"config", "three": result, "twenty": [{"seed", **result}],
    "utilisation": {policy: median in percent}, "reductions": {policy without resizing: {figure: median by
    which resizing lessens it, in percent}}}`, where a result is `{policy: {"makespan_s", "utilisation",
    "device_hours", "median_completion_s", "median_queueing_s", "first_priority_completion_s": of the jobs of
    the highest priority, the longest}}`.
    """
    applications = read_applications([config.traces], [PLAIN], _LIMITS)
    if lacking := _LIMITS.keys() - applications.keys():
        raise ValueError(f"{config.traces}: there is no {', '.join(sorted(lacking))}, which the jobs train")
    rules = Rules(config.interval, _RESIZE_COST)
    three = _compared(three_jobs(), applications, _NODE, rules)
    twenty: list[dict[str, Any]] = [
        {"seed": seed, **_compared(twenty_jobs(seed), applications, _NODES, rules)} for seed in config.seeds
    ]
    figures = {
        "config": options_of(config),
        "three": three,
        "twenty": twenty,
        "utilisation": {
            policy: 100 * statistics.median(one[policy]["utilisation"] for one in twenty)
            for policy in _POLICIES
        },
        "reductions": {
            policy: {
                key: statistics.median(_reduction(one, key, policy) for one in twenty) for key in _REDUCED
            }
            for policy in (STATIC, PASSING)
        },
    }
    _print(console, figures)
    return figures


def three_jobs() -> list[Arrival]:
    """Return the jobs of section 6.4.1; the third arrives while the second runs if none is resized."""
    return [
        Arrival("bert-0", 0, "bert", devices=4, batch=48, priority=1.0),
        Arrival("cifar10-1", 600, "cifar10", devices=2, batch=128, priority=5.0),
        Arrival("bert-2", 2400, "bert", devices=4, batch=48, priority=10.0),
    ]


def twenty_jobs(seed: int) -> list[Arrival]:
    """Return the jobs of a trace as in section 6.4.2: times, models, batches and priorities are drawn."""
    random = np.random.default_rng(seed)
    arrivals, now = [], 0.0
    for number in range(_JOBS):
        now += random.exponential(_GAP)
        model, sizes = _MIX[random.integers(len(_MIX))]
        batch, number_of_devices = sizes[random.integers(len(sizes))]
        priority = _PRIORITIES[random.integers(len(_PRIORITIES))]
        arrivals.append(Arrival(f"{model}-{number}", round(now), model, number_of_devices, batch, priority))
    return arrivals


def figures_of(lives: Sequence[Life], arrivals: Sequence[Arrival], cluster: Cluster) -> dict[str, float]:
    """Return the figures of a simulation whose jobs have all ended, as the module describes."""
    priorities = {arrival.name: arrival.priority for arrival in arrivals}
    highest = max(priorities.values())
    ends = [life.submitted + life.completion for life in lives]
    makespan = max(ends) - min(life.submitted for life in lives)
    starts = [life.submitted if life.started is None else life.started for life in lives]
    used = sum(life.device_seconds for life in lives)
    return {
        "makespan_s": makespan,
        "utilisation": used / (makespan * cluster.devices),
        "device_hours": used / 3600,
        "median_completion_s": statistics.median(life.completion for life in lives),
        "median_queueing_s": statistics.median(
            start - life.submitted for life, start in zip(lives, starts, strict=True)
        ),
        "first_priority_completion_s": max(
            life.completion for life in lives if priorities[life.name] == highest
        ),
    }


def _compared(
    arrivals: Sequence[Arrival], applications: Mapping[str, Application], cluster: Cluster, rules: Rules
) -> dict[str, dict[str, float]]:
    return {
        policy: figures_of(simulate(arrivals, applications, make(), cluster, rules), arrivals, cluster)
        for policy, make in _POLICIES.items()
    }


def _reduction(result: Mapping[str, Any], key: str, policy: str) -> float:
    """Return by how many percent resizing lessens another policy's figure; 0 where that is 0."""
    before, after = result[policy][key], result[ELASTIC][key]
    return 100 * (1 - after / before) if before else 0.0


def _print(console: Console, figures: Mapping[str, Any]) -> None:
    three = figures["three"]
    table = make_table("Three jobs on four devices", "", STATIC, ELASTIC, "reduction", "VirtualFlow")
    for text, key, paper in (
        ("makespan, min", "makespan_s", "38%"),
        ("completion of the highest priority, min", "first_priority_completion_s", "45%"),
    ):
        minutes = (f"{three[policy][key] / 60:.1f}" for policy in (STATIC, ELASTIC))
        table.add_row(text, *minutes, f"{_reduction(three, key, STATIC):.1f}%", paper)
    console.print(table)
    table = make_table(
        "Twenty jobs on 16 devices, minutes without and with resizing",
        *("seed", "utilisation", "makespan", "median completion", "median queueing", "device hours"),
    )
    for one in figures["twenty"]:
        used = " to ".join(f"{100 * one[policy]['utilisation']:.1f}%" for policy in (STATIC, ELASTIC))
        cells = []
        for key in _REDUCED:
            unit = 60 if key.endswith("_s") else 1
            cells.append(" to ".join(f"{one[policy][key] / unit:.1f}" for policy in (STATIC, ELASTIC)))
        table.add_row(str(one["seed"]), used, *cells)
    table.add_section()
    for policy, reductions in figures["reductions"].items():
        used = " to ".join(f"{figures['utilisation'][one]:.1f}%" for one in (policy, ELASTIC))
        table.add_row(f"median, against {policy}", used, *(f"{-reductions[key]:+.1f}%" for key in _REDUCED))
    table.add_row("VirtualFlow", "71.1% to 90.6%", "-45.5%", "-47.6%", "-99.3%", "")
    console.print(table)
