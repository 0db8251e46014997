"""Figure 13b of JABAS: nodes for each epoch by the forecast batch size, and by the last one.

Jobs are simulated with step times and gradient noise that were measured; nothing is trained. A job's batch
size follows the gradient noise, so that the similarity of half batches' gradients is at a threshold (JABAS,
6.1). Before each epoch the nodes with the least time, or the least cost, are chosen for the batch size
expected (6.3); the epoch is trained with its true one. What is gained by a forecast is told beside the last
value and beside an oracle, which knows the next. Before the first epoch the smallest batch is expected.
Models whose epochs are too few for any forecast, or that have one device only, are left out.

Example:
  evenpace lab experiment epoch-scaling --traces pollux
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from threadpoolctl import threadpool_limits

from idl.settings import Checked, Setting
from lab.experiments.scheduling_fields import DEVICES, MOST_NODES, RESTART_COST, Traces
from lab.report import Columns, cells_of, options_of, table_of
from lab.simulations.trace_files import PLAIN, read_applications
from lab.simulator.applications import Application
from lab.simulator.rules import LIMITS
from lab.simulator.single_job import Configuration, TrainedEpoch, configure, most_nodes, step_seconds, train
from predictors.batch_sizes import FEWEST, forecast
from scheduler.autoscaling import Array, cheapest, quickest

FORECASTS = ("mean", "last", "oracle")
RULES: dict[str, Callable[[Array], int]] = {"time": quickest, "cost": cheapest}


@dataclass(frozen=True)
class EpochScalingConfig(Checked):
    """The configuration of jobs that choose their nodes by epoch."""

    traces: Traces
    # A higher one asks for larger batches.
    similarity: Annotated[float, Setting("Threshold that batch sizes follow.", above=0, below=1)] = 0.1


def run(config: EpochScalingConfig, console: Console) -> dict[str, Any]:
    """Train every model by each forecast and rule, and print times and costs.

    Returns `{"config", "models": [{"model", "rule": "time" or "cost", "results": {forecast: {"hours",
    "device_hours", "changes": of the number of nodes}}}], "over_oracle": {rule: {forecast: {"hours",
    "device_hours": geometric mean over models}}}}`, where a forecast is "mean" (JABAS's), "last" or "oracle".
    """
    chosen = [
        application
        for application in read_applications([config.traces], [PLAIN], LIMITS["pollux"]).values()
        if application.epochs > FEWEST and application.limits.most_devices != 1
    ]
    if not chosen:
        raise ValueError(f"{config.traces}: no model has the {FEWEST + 1} epochs that a forecast takes")
    models = []
    with threadpool_limits(limits=1):  # several threads make a fit to twenty values several times slower
        for application in chosen:
            sizes = batch_sizes(application, config.similarity)
            for rule in RULES:
                results = {name: _result(scaled(application, sizes, name, rule)) for name in FORECASTS}
                models.append({"model": application.name, "rule": rule, "results": results})
    figures = {
        "config": options_of(config),
        "models": models,
        "over_oracle": {rule: _over_oracle([one for one in models if one["rule"] == rule]) for rule in RULES},
    }
    _print(console, figures)
    return figures


def batch_sizes(application: Application, similarity: float) -> Array:
    """Return the batch size of each epoch, (epochs,), in samples.

    It is the one at which the expected similarity 1 / (1 + 2φ/B) is at the threshold, within what was trained
    with; the noise scale φ is that of the epoch, with a batch of the size before.
    """
    batches = application.batches[PLAIN]
    sizes = np.empty(application.epochs)
    size = batches.initial
    for epoch in range(application.epochs):
        wanted = 2 * application.noise(size, epoch).scale * similarity / (1 - similarity)
        size = round(min(max(wanted, batches.initial), batches.largest))
        sizes[epoch] = size
    return sizes


def expected(sizes: Array, epoch: int, name: str, first: int) -> float:
    """Return the batch size that is expected of an epoch by a forecaster, or by "oracle", which looks ahead.

    Without an oracle, `first` is expected of the first epoch.
    """
    if name == "oracle":
        return float(sizes[epoch])
    return float(forecast(sizes[:epoch], 1, name)[0]) if epoch else float(first)


def scaled(application: Application, sizes: Array, name: str, rule: str) -> list[TrainedEpoch]:
    """Train with the nodes that suit the batch sizes expected by a forecast, for the least time or cost.

    The batch sizes that occur are (epochs,).
    """
    batches = application.batches[PLAIN]
    counts = range(1, most_nodes(batches, MOST_NODES, DEVICES) + 1)

    def seconds(batch: float, nodes: int) -> float:
        """Return the seconds of a sample with a batch, or with the least that fills the devices."""
        its = configure(batches, batch, nodes, DEVICES)
        return step_seconds(application, its, DEVICES) / (its.local * (its.accumulations + 1) * nodes)

    def choose(epoch: int, before: TrainedEpoch | None) -> Configuration:
        batch = min(expected(sizes, epoch, name, batches.initial), batches.largest)
        nodes = RULES[rule](np.array([seconds(batch, count) for count in counts]))
        return configure(batches, sizes[epoch], nodes, DEVICES)

    return train(application, choose, DEVICES, RESTART_COST)


def _result(epochs: Sequence[TrainedEpoch]) -> dict[str, float]:
    return {
        "hours": sum(epoch.seconds for epoch in epochs) / 3600,
        "device_hours": sum(epoch.seconds * epoch.nodes for epoch in epochs) * DEVICES / 3600,
        "changes": sum(before.nodes != after.nodes for before, after in pairwise(epochs)),
    }


def _over_oracle(models: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            key: statistics.geometric_mean(
                one["results"][name][key] / one["results"]["oracle"][key] for one in models
            )
            for key in ("hours", "device_hours")
        }
        for name in FORECASTS
    }


def _print(console: Console, figures: Mapping[str, Any]) -> None:
    columns: Columns = {
        name: (name, "{0[hours]:.2f}  {0[device_hours]:.1f}  {0[changes]}") for name in FORECASTS
    }
    over: Columns = {name: (name, "{0[hours]:.3f}  {0[device_hours]:.3f}") for name in FORECASTS}
    for rule in RULES:
        title = f"Nodes with the least {rule} for the batch size expected: hours, device hours, changes"
        rows = ((one["model"], one["results"]) for one in figures["models"] if one["rule"] == rule)
        table = table_of(title, "model", columns, rows)
        table.add_section()
        table.add_row("over oracle", *cells_of(over, figures["over_oracle"][rule]))
        console.print(table)
