"""Runs of simulations: workloads under policies, several at once, with a table of their figures."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from threadpoolctl import threadpool_limits

from evenpace.local.terminal import make_progress
from lab.process_pool import process_pool
from lab.simulations.config import SimulationConfig
from lab.simulations.published import published_mean
from lab.simulations.results import Outcome, Results, Simulation
from lab.simulations.tables import print_figures
from lab.simulations.trace_files import read_applications
from lab.simulations.workload_files import find_workloads, read_workload
from lab.simulator.applications import Application
from lab.simulator.capacity import Capacity
from lab.simulator.fairness import fair_shares
from lab.simulator.rules import LIMITS
from lab.simulator.simulation import check_arrivals, simulate
from lab.simulator.workloads import Arrival

_Key: TypeAlias = tuple[str, Path]
"""A policy and the file of a workload."""


def run(
    config: SimulationConfig, console: Console, json_path: Path | None = None, page_path: Path | None = None
) -> dict[str, Any]:
    """Simulate each workload under each policy; print and return figures by policy, then by workload.

    Simulations whose results the file `json_path` has are not run again.
    """
    workloads = {path: read_workload(path) for path in find_workloads(config.workload)}
    cluster, capacity = config.nodes, config.read_capacity()
    models = {arrival.application for arrivals in workloads.values() for arrival in arrivals}
    applications = read_applications(config.traces, cluster.kinds, LIMITS[config.rules], models)
    for path, arrivals in workloads.items():
        for policy in config.policy:
            try:
                check_arrivals(arrivals, applications, config.make_policy(policy), cluster)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
    measured = _digest([path for folder in config.traces for path in sorted(folder.glob("*/*.csv"))])
    simulations = {
        (policy, path): Simulation(
            policy, f"{_digest([path])}-{measured}", tuple(config.conditions(policy).items())
        )
        for policy in dict.fromkeys(config.policy)
        for path in workloads
    }
    results = Results(json_path)
    tasks = {
        (policy, path): (policy, workloads[path], applications, config, capacity)
        for (policy, path), one in simulations.items()
        if one not in results.outcomes
    }
    if tasks:
        with make_progress(console) as bar:
            done = len(simulations) - len(tasks)
            task = bar.add_task("simulations", total=len(simulations), completed=done)
            for (policy, path), outcome in _simulated(tasks, config.jobs):
                results.add(simulations[policy, path], path, outcome)
                bar.advance(task)
    figures: dict[str, dict[str, Any]] = {}
    for (policy, path), one in simulations.items():
        figures.setdefault(policy, {})[str(path)] = {
            **results.outcomes[one].figures,
            "published_mean_completion_s": published_mean(path, policy, config.conditions(policy)),
        }
    print_figures(console, figures)
    if page_path is not None:
        from lab.simulations.page import write_simulations_page  # plots take long to load

        outcomes: dict[Path, dict[str, Outcome]] = {}
        for (policy, path), one in simulations.items():
            outcomes.setdefault(path, {})[policy] = results.outcomes[one]
        rules = {policy: config.rules_for(policy) for policy in config.policy}
        write_simulations_page(outcomes, figures, cluster, rules, page_path, config.others)
    return figures


def _simulated(tasks: Mapping[_Key, tuple[Any, ...]], jobs: int) -> Iterator[tuple[_Key, Outcome]]:
    """Simulate, and yield the outcome of each task as soon as it is done."""
    if jobs == 1:
        for key, task in tasks.items():
            yield key, _simulate(*task)
        return
    with process_pool(min(jobs, len(tasks))) as executor:
        keys = {executor.submit(_simulate, *task): key for key, task in tasks.items()}
        for future in as_completed(keys):
            yield keys[future], future.result()


def _simulate(
    policy: str,
    arrivals: Sequence[Arrival],
    applications: Mapping[str, Application],
    config: SimulationConfig,
    capacity: Capacity | None,
) -> Outcome:
    make_policy, cluster, rules = partial(config.make_policy, policy), config.nodes, config.rules_for(policy)
    with threadpool_limits(limits=1):  # several threads make a fit to a few values many times slower
        lives = simulate(arrivals, applications, make_policy(), cluster, rules, capacity)
        shares = fair_shares(lives, arrivals, applications, make_policy(), cluster, rules)
    return Outcome.of(lives, shares, cluster.devices)


def _digest(paths: Sequence[Path]) -> str:
    """Return a digest of files' contents, with their folders' and own names but for a single one."""
    digest = hashlib.sha256()
    for path in paths:
        name = f"{path.parent.name}/{path.name}" if len(paths) > 1 else ""
        content = path.read_bytes()
        digest.update(f"{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()[:16]
