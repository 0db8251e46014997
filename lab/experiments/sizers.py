"""Sizers compared by the time to a loss: a network trained from the same start with each.

Each run has a manager, a shard and workers of its own on this machine, one after the other. The JSON::

    {..., "runs": [{"sizer", "rule", "seed", "reached", "epochs": [{"epoch", "seconds", "iterations", "size",
     "loss", "accuracy"}]}], "sizers": [{"sizer", "rule", "seconds", "times_as_fast", "epochs", "iterations",
     "size", "accuracy"}]}

`sizers` has medians over the seeds; `times_as_fast` is the first one's seconds over those.
"""

import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from evenpace.local.cluster import LocalCluster
from idl.errors import UnavailableError
from lab import terminal
from lab.data import load
from lab.experiments.config import SizersConfig
from lab.plots import lines, log_scale, panels, save, styled
from lab.report import Columns, table_of

_SCRIPT = Path(__file__).with_name("sizers_worker.py")
_COLUMNS: Columns = {
    "seconds": ("seconds", "{:.1f}"),
    "times_as_fast": ("times as fast", "{:.2f}"),
    "epochs": ("epochs", "{:.0f}"),
    "iterations": ("iterations", "{:,.0f}"),
    "size": ("last batch", "{:,.0f}"),
    "accuracy": ("accuracy", "{:.1%}"),
}


def run(
    config: SizersConfig, console: Console, json_path: Path | None, plot_path: Path | None
) -> dict[str, Any]:
    """Train with each sizer and seed, print what each took, and write and draw it.

    Args:
        config: The configuration.
        console: Where the table goes.

    Raises:
        ProcessFailedError: A process failed.
        UnavailableError: A training did not come to the loss.
        DataError: The data cannot be had.
    """
    samples = len(load(config.data).train_labels)
    if config.batch_size > samples:
        raise ValueError(f"batch size {config.batch_size}: {config.data} has {samples} samples")
    before = os.getloadavg()[0]
    cases = [(sizer, rule, seed) for seed in config.seeds for sizer, rule in config.pairs]
    runs = [_train(config, *case) for case in track(cases, description="trainings", console=console)]
    figures = {
        **asdict(config),
        "load_average": [before, os.getloadavg()[0]],
        "runs": runs,
        "sizers": _summary(runs, config.pairs),
    }
    title = f"Training {config.data} to a loss of {config.loss:g}, {config.workers} workers"
    rows = ((f"{one['sizer']}, {one['rule']}", one) for one in figures["sizers"])
    console.print(table_of(title, "sizer, learning rates", _COLUMNS, rows))
    console.print(terminal.load_line(*figures["load_average"]))
    if plot_path is not None:
        save(_draw(runs), plot_path)
    terminal.give(figures, json_path, console)
    return figures


def _train(config: SizersConfig, sizer: str, rule: str, seed: int) -> dict[str, Any]:
    """Return one training, by epoch."""
    arguments = ["--data", config.data, "--batch-size", str(config.batch_size), "--rule", rule]
    arguments += ["--rate", str(config.rate), "--loss", str(config.loss), "--epochs", str(config.epochs)]
    arguments += ["--seed", str(seed)]
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            Path(folder),
            workers=config.workers,
            policy=config.policy,
            sizer=sizer,
            batch_size=f"{config.batch_size}:{config.most}",
        ) as cluster,
    ):
        for number in range(config.workers):
            cluster.start_worker(f"w{number}", _SCRIPT, arguments)
        cluster.wait()
        said = (cluster.folder / "w0.log").read_text().splitlines()
    epochs = [json.loads(line) for line in said if line.startswith('{"epoch"')]
    if not epochs or epochs[-1]["loss"] >= config.loss:
        reached = f"{epochs[-1]['loss']:.3g}" if epochs else "nothing"
        raise UnavailableError(
            f"the training with sizer {sizer}, {rule} came to {reached} in {config.epochs} epochs: "
            f"give more, or a loss above {config.loss:g}"
        )
    return {"sizer": sizer, "rule": rule, "seed": seed, "epochs": epochs}


def _summary(runs: Sequence[dict[str, Any]], pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return each sizer's medians over the seeds."""
    summaries: list[dict[str, Any]] = []
    for sizer, rule in pairs:
        ends = [one["epochs"][-1] for one in runs if (one["sizer"], one["rule"]) == (sizer, rule)]
        medians = {name: statistics.median(end[name] for end in ends) for name in ends[0]}
        first = summaries[0]["seconds"] if summaries else medians["seconds"]
        summaries.append(
            {
                "sizer": sizer,
                "rule": rule,
                "seconds": medians["seconds"],
                "times_as_fast": first / medians["seconds"],
                "epochs": medians["epoch"],
                "iterations": medians["iterations"],
                "size": medians["size"],
                "accuracy": medians["accuracy"],
            }
        )
    return summaries


@styled
def _draw(runs: Sequence[dict[str, Any]]) -> Figure:
    """Draw loss and batch size against the seconds, of the first seed."""
    first = [one for one in runs if one["seed"] == runs[0]["seed"]]
    figure, everything = panels(8, 5, rows=2, sharex=True)
    for axes, key, label in zip(everything, ("loss", "size"), ("Loss", "Whole batch, samples"), strict=True):
        lines(
            axes,
            (
                (
                    f"{one['sizer']}, {one['rule']}",
                    [epoch["seconds"] for epoch in one["epochs"]],
                    [epoch[key] for epoch in one["epochs"]],
                )
                for one in first
            ),
        )
        log_scale(axes)
        axes.set_ylabel(label)
    everything[0].legend()
    everything[1].set_xlabel("Seconds")
    return figure
