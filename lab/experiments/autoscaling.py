"""Figure 9 of Pollux: nodes for one job by goodput, and by throughput.

The job is simulated with step times and gradient noise that were measured; nothing is trained. It begins on
the nodes that the rule chooses from one, and the rule is asked again before each epoch (Pollux, 5.4.1). By
goodput it follows the gradient noise of that epoch, which Pollux's agents measure all along. By throughput,
as Or et al. do, it never changes, and the batch is as large as is fastest. Both know the step times, as a fit
to all that were measured, and train with those that were measured.

Example:
  evenpace lab experiment autoscaling --traces pollux --plot autoscaling.png
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console

from evenpace.reports import style
from idl.noise import Noise
from idl.settings import Setting
from lab.experiments.scheduling_fields import DEVICES, MOST_NODES, RESTART_COST, Traces
from lab.plots import panels, save, styled
from lab.report import Columns, options_of, table_of
from lab.simulations.trace_files import PLAIN, read_applications
from lab.simulator.applications import Application
from lab.simulator.rules import LIMITS
from lab.simulator.single_job import Configuration, TrainedEpoch, most_nodes, profile, train
from scheduler.autoscaling import scale_up
from scheduler.goodput import Goodput

GOODPUT, THROUGHPUT = "goodput", "throughput"
_MODEL = "imagenet"
_ALL_NOISE = Noise(0.0, 1.0)  # with which every sample counts alike, so that goodput is throughput


@dataclass(frozen=True)
class AutoscalingConfig:
    """The configuration of one job that rents nodes."""

    traces: Traces
    plot: Annotated[
        Path | None, Setting("Draw nodes and efficiency against the time, a PNG file.", folder=False)
    ] = None


def run(config: AutoscalingConfig, console: Console) -> dict[str, Any]:
    """Train under both rules, and print the costs.

    Returns `{"config", "goodput": result, "throughput": result}`, where a result is `{"hours",
    "device_hours", "efficiency": mean over the time, "epochs": [{"end_h": time, "nodes", "batch": samples,
    "efficiency"}]}`.
    """
    applications = read_applications([config.traces], [PLAIN], LIMITS["pollux"])
    if (application := applications.get(_MODEL)) is None:
        raise ValueError(f"{config.traces}: there is no {_MODEL}, only {', '.join(sorted(applications))}")
    figures: dict[str, Any] = {"config": options_of(config)}
    for rule in (GOODPUT, THROUGHPUT):
        figures[rule] = result_of(scaled(application, rule))
    _print(console, figures)
    if config.plot is not None:
        save(draw(figures), config.plot)
    return figures


def scaled(application: Application, rule: str) -> list[TrainedEpoch]:
    """Train with the nodes that a rule, goodput or throughput, chooses."""
    batches = application.batches[PLAIN]
    counts = np.arange(1, most_nodes(batches, MOST_NODES, DEVICES) + 1)
    throughput = profile(application, len(counts), DEVICES)

    def choose(epoch: int, before: TrainedEpoch | None) -> Configuration:
        noise = _ALL_NOISE
        if rule == GOODPUT:
            noise = application.noise(batches.initial if before is None else before.batch, epoch)
        best = Goodput(throughput, noise, batches).best(counts, DEVICES * counts)
        nodes = scale_up(best.goodput, 1 if before is None else before.nodes)
        return Configuration(nodes, int(best.local[nodes - 1]), int(best.accumulations[nodes - 1]))

    return train(application, choose, DEVICES, RESTART_COST)


def result_of(epochs: Sequence[TrainedEpoch]) -> dict[str, Any]:
    """Return the figures of a training of at least one epoch, as the module describes."""
    seconds = math.fsum(epoch.seconds for epoch in epochs)
    ends = accumulate(epoch.seconds for epoch in epochs)
    return {
        "hours": seconds / 3600,
        "device_hours": math.fsum(epoch.seconds * epoch.nodes * DEVICES for epoch in epochs) / 3600,
        "efficiency": math.fsum(epoch.efficiency * epoch.seconds for epoch in epochs) / seconds,
        "epochs": [
            {"end_h": end / 3600, "nodes": epoch.nodes, "batch": epoch.batch, "efficiency": epoch.efficiency}
            for end, epoch in zip(ends, epochs, strict=True)
        ],
    }


@styled
def draw(figures: Mapping[str, Any]) -> Figure:
    """Draw nodes and statistical efficiency over time, a line for each rule."""
    figure, (nodes, efficiency) = panels(7.5, 5.2, rows=2, sharex=True)
    for rule, colour in ((GOODPUT, style.COLOURS[0]), (THROUGHPUT, style.GREY)):
        epochs = figures[rule]["epochs"]
        edges = [0.0, *(epoch["end_h"] for epoch in epochs)]
        for axes, name in ((nodes, "nodes"), (efficiency, "efficiency")):
            values = [epoch[name] for epoch in epochs]
            axes.stairs(values, edges, baseline=None, color=colour, linewidth=1.7, label=f"by {rule}")
            axes.set_ylim(bottom=0)
    nodes.set_title("Nodes")
    nodes.yaxis.set_major_locator(MaxNLocator(integer=True))
    nodes.legend(loc="lower right")
    efficiency.set_title("Statistical efficiency")
    efficiency.set_xlabel("hours")
    return figure


def _print(console: Console, figures: Mapping[str, Any]) -> None:
    columns: Columns = {
        "device_hours": ("device hours", "{:.1f}"),
        "hours": ("hours", "{:.2f}"),
        "efficiency": ("mean efficiency", "{:.2f}"),
        "epochs": ("nodes, first to last", lambda epochs: f"{epochs[0]['nodes']} to {epochs[-1]['nodes']}"),
    }
    first, second = (figures[rule] for rule in (GOODPUT, THROUGHPUT))
    title = f"{_MODEL} on up to {MOST_NODES} nodes"
    table = table_of(title, "nodes chosen by", columns, ((GOODPUT, first), (THROUGHPUT, second)))
    changes = [f"{100 * (first[key] / second[key] - 1):+.1f}%" for key in ("device_hours", "hours")]
    table.add_section()
    table.add_row("goodput against throughput", *changes, "", "")
    table.add_row("Pollux, ImageNet", "-25%", "+6%", "", "")
    console.print(table)
