"""Time to a loss with batches of a fixed size, and with sizes that follow the gradient noise.

A network of one hidden layer is trained from the same start by local workers, once for each SIZER:RULE and
seed, one after the other. Each training has a manager, a shard and workers of its own.

Example:
  evenpace lab experiment sizers --seeds 1,2,3 --plot sizers.png
"""

import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from batchsize_manager.sizers import SIZERS
from evenpace.local.cluster import LocalCluster
from idl.errors import InvalidRequestError, UnavailableError
from idl.settings import Setting, check_settings
from lab.data import load
from lab.fields import numbers, parse_names
from lab.plots import lines, log_scale, panels, save, styled
from lab.report import Columns, options_of, table_of
from worker.learning_rates import factor_by

_SCRIPT = Path(__file__).with_name("sizers_worker.py")
_COLUMNS: Columns = {
    "seconds": ("seconds", "{:.1f}"),
    "times_as_fast": ("times as fast", "{:.2f}"),
    "epochs": ("epochs", "{:.0f}"),
    "iterations": ("iterations", "{:,.0f}"),
    "size": ("last batch", "{:,.0f}"),
    "accuracy": ("accuracy", "{:.1%}"),
}


@dataclass(frozen=True)
class SizersConfig:
    """The configuration of trainings with batches of each sizer's size."""

    data: Annotated[str, Setting("digits, mnist:DIR or cifar10:DIR.", metavar="DATA")] = "digits"
    # A sizer and a rule of learning rates each, as SIZER:RULE; all are compared with the first.
    runs: Annotated[
        tuple[str, ...],
        Setting("Sizer and rule of learning rates.", metavar="SIZER:RULE,...", read=parse_names),
    ] = ("fixed:none", "goodput:adascale", "goodput:none")
    workers: Annotated[int, Setting("Number of workers.", least=1)] = 2
    batch_size: Annotated[int, Setting("Samples of the first batch, and the least.", least=1)] = 32
    most: Annotated[int, Setting("Samples of a batch at most.", least=1)] = 512
    loss: Annotated[float, Setting("Loss over all samples that ends a training.", above=0, below=inf)] = 0.05
    epochs: Annotated[int, Setting("Epochs at most.", least=1)] = 3000
    seeds: Annotated[tuple[int, ...], numbers("seeds", "A run with each; medians.", "SEED,...", 0)] = (1,)
    plot: Annotated[Path | None, Setting("Draw losses and sizes by the time, a PNG file.", folder=False)] = (
        None
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.most < self.batch_size:
            raise InvalidRequestError(f"most {self.most}: must be at least batch_size, {self.batch_size}")
        for one in self.runs:
            sizer, _, rule = one.partition(":")
            if sizer not in SIZERS or sizer == "schedule":
                known = ", ".join(name for name in SIZERS if name != "schedule")
                raise InvalidRequestError(f"runs {one!r}: give SIZER:RULE, with a sizer of {known}")
            factor_by(rule, "sgd")  # raises InvalidRequestError

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Sizer and rule of each run."""
        return [(sizer, rule) for sizer, _, rule in (one.partition(":") for one in self.runs)]


def run(config: SizersConfig, console: Console) -> dict[str, Any]:
    """Train with each sizer and seed, and print what each took.

    Returns `{..., "runs": [{"sizer", "rule", "seed", "epochs": [{"epoch", "seconds", "iterations", "size",
    "loss", "accuracy"}]}], "sizers": [{"sizer", "rule", "seconds", "times_as_fast", "epochs", "iterations",
    "size", "accuracy"}]}`. `sizers` has medians over the seeds; `times_as_fast` is the first one's seconds
    over those.
    """
    samples = len(load(config.data).train_labels)
    if config.batch_size > samples:
        raise ValueError(f"batch size {config.batch_size}: {config.data} has {samples} samples")
    cases = [(sizer, rule, seed) for seed in config.seeds for sizer, rule in config.pairs]
    runs = [_train(config, *case) for case in track(cases, description="trainings", console=console)]
    figures = {**options_of(config), "runs": runs, "sizers": _summary(runs, config.pairs)}
    title = f"Training {config.data} to a loss of {config.loss:g}, {config.workers} workers"
    rows = ((f"{one['sizer']}, {one['rule']}", one) for one in figures["sizers"])
    console.print(table_of(title, "sizer, learning rates", _COLUMNS, rows))
    if config.plot is not None:
        save(_draw(runs), config.plot)
    return figures


def _train(config: SizersConfig, sizer: str, rule: str, seed: int) -> dict[str, Any]:
    """Return one training, by epoch."""
    options = {name: getattr(config, name) for name in ("data", "batch_size", "loss", "epochs")}
    argument = json.dumps({**options, "rule": rule, "seed": seed})
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            Path(folder),
            workers=config.workers,
            policy="learned",
            sizer=sizer,
            batch_size=f"{config.batch_size}:{config.most}",
        ) as cluster,
    ):
        for number in range(config.workers):
            cluster.start_worker(f"w{number}", _SCRIPT, [argument])
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
        found = {key: medians[key] for key in ("seconds", "iterations", "size", "accuracy")}
        found |= {"times_as_fast": first / medians["seconds"], "epochs": medians["epoch"]}
        summaries.append({"sizer": sizer, "rule": rule, **found})
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
