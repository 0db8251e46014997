"""Forecasts of the next epochs' noise scale, and so of batch sizes, against the last epoch's.

The noise scales are measured ones, of other people's trainings: in --data is a folder for each model, with a
file `validation-M.csv` for a training with batches of M samples. Its columns are `grad_sqr,grad_var`, and may
be `progress,iteration,metric` as well; a row is an epoch. They are the gradient's squared norm and the trace
of its covariance, for a batch of the model's smallest M. So the noise scale is M grad_var / grad_sqr, in
samples. An epoch where one of them is 0 has none: it is not forecast, and a job would go on with the scale
that it had. At each epoch, from the fewest that can be fitted on, each forecaster has the epochs so far.
Nothing is trained.

Example:
  evenpace lab experiment forecast --data traces --horizons 1,5,10
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from threadpoolctl import threadpool_limits

from evenpace.reports import style
from idl.settings import Checked, Setting
from lab.csv_rows import read_rows
from lab.fields import numbers
from lab.plots import bars, panels, save, styled
from lab.report import Columns, options_of, table_of
from lab.simulations.trace_files import validated
from predictors import Array
from predictors.batch_sizes import FEWEST, FORECASTERS, forecast

_COLUMNS = ("grad_sqr", "grad_var")
_OTHERS = ("progress", "iteration", "metric")

Curves = Mapping[str, Sequence[Array]]
"""Noise scales of each training by epoch, (epochs,), in samples, NaN where there is none; by model."""


@dataclass(frozen=True)
class ForecastConfig(Checked):
    """The configuration of forecasts of measured noise scales."""

    data: Annotated[Path, Setting("Folder of MODEL/validation-M.csv: a row an epoch.", folder=True)]
    horizons: Annotated[tuple[int, ...], numbers("horizons", "Epochs ahead.", "EPOCHS,...", 1)] = (1, 5)
    every: Annotated[int, Setting("Epochs from one forecast to the next.", least=1)] = 5
    plot: Annotated[Path | None, Setting("Draw the errors, a PNG file.", folder=False)] = None


def run(config: ForecastConfig, console: Console) -> dict[str, Any]:
    """Forecast every training's noise scales, and print the errors.

    Returns, with relative errors, which are those of a batch size in proportion to the scale as well,
    `{"config", "seconds": {forecaster: mean time of a forecast}, "models": [{"model", "trainings",
    "horizons": [{"epochs", "forecasts", "errors": {forecaster: {"mean", "median"}}}]}], "all": [{"epochs",
    "errors": likewise, the means over models}]}`.
    """
    curves = read_noise(config.data)
    seconds: dict[str, list[float]] = {name: [] for name in FORECASTERS}
    for name in FORECASTERS:
        forecast(np.arange(1.0, 9.0), 1, name)  # loads the libraries, which is neither timed nor limited
    with threadpool_limits(limits=1):  # several threads make a fit to twenty values several times slower
        models = [
            {"model": model, "trainings": len(trainings), "horizons": horizons}
            for model, trainings in curves.items()
            if (horizons := errors(trainings, config, seconds))
        ]
    if not models:
        epochs = FEWEST + min(config.horizons)
        raise ValueError(f"{config.data}: no training has the {epochs} epochs that a forecast takes")
    figures = {
        "config": options_of(config),
        "seconds": {name: statistics.fmean(times) for name, times in seconds.items()},
        "models": models,
        "all": _over_models(models),
    }
    _print(console, figures)
    if config.plot is not None:
        save(draw(figures), config.plot)
    return figures


def read_noise(folder: Path) -> Curves:
    """Read the noise scales of a folder of trainings, in the form that the module describes."""
    curves: dict[str, list[Array]] = {}
    for model in sorted(path for path in folder.iterdir() if path.is_dir()):
        found = [(size, path) for path in model.iterdir() if (size := validated(path.name))]
        smallest = min((size for size, _ in found), default=0)
        if found:
            curves[model.name] = [_scales(path, smallest) for _, path in sorted(found)]
    if not curves:
        raise ValueError(f"{folder}: there is no MODEL/validation-M.csv, with M a number of samples")
    return curves


def errors(
    trainings: Sequence[Array], config: ForecastConfig, seconds: dict[str, list[float]]
) -> list[dict[str, Any]]:
    """Return the figures "horizons" of a model; a horizon beyond all trainings, (epochs,) each, is left out.

    `seconds` takes how long each forecast took, by forecaster.
    """
    found: dict[int, dict[str, list[float]]] = {
        epochs: defaultdict(list) for epochs in sorted(config.horizons)
    }
    for scales in trainings:
        known = held(scales)
        for now in range(FEWEST, len(scales), config.every):
            ahead = {epochs: scales[now + epochs - 1] for epochs in found if now + epochs <= len(scales)}
            if not ahead or np.isnan(known[now - 1]):
                continue
            for name in FORECASTERS:
                began = time.perf_counter()
                expected = forecast(known[:now][~np.isnan(known[:now])], max(ahead), name)
                seconds[name].append(time.perf_counter() - began)
                for epochs, truth in ahead.items():
                    if not np.isnan(truth):
                        found[epochs][name].append(abs(float(expected[epochs - 1] / truth) - 1))
    return [
        {
            "epochs": epochs,
            "forecasts": len(by_name["last"]),
            "errors": {
                name: {"mean": statistics.fmean(off), "median": statistics.median(off)}
                for name, off in by_name.items()
            },
        }
        for epochs, by_name in found.items()
        if by_name
    ]


def held(scales: Array) -> Array:
    """Return scales with the last one that was known in place of those that are not; NaN before the first."""
    places = np.where(np.isnan(scales), -1, np.arange(len(scales)))
    last = np.maximum.accumulate(places)  # (epochs,): where the last known one is
    return np.where(last < 0, np.nan, scales[last])


@styled
def draw(figures: Mapping[str, Any]) -> Figure:
    """Draw the median errors by model and forecaster, a panel for each horizon."""
    horizons = [one["epochs"] for one in figures["all"]]
    figure, everything = panels(7.5, 2.8 * len(horizons), rows=len(horizons))
    colours = [style.GREY if name == "last" else style.COLOURS[i - 1] for i, name in enumerate(FORECASTERS)]
    for axes, epochs in zip(everything, horizons, strict=True):
        shown = _of_horizon(figures["models"], epochs)
        medians = {
            name: [100 * one["errors"][name]["median"] for one in shown.values()] for name in FORECASTERS
        }
        bars(axes, list(shown), medians, colours=colours, text=None)
        axes.set_ylabel("median error, %")
        axes.set_title(_ahead(epochs))
    everything[0].legend()
    return figure


def _of_horizon(models: Sequence[Mapping[str, Any]], epochs: int) -> dict[str, Mapping[str, Any]]:
    """Return the figures of a horizon by model, of those that have it."""
    return {model["model"]: one for model in models for one in model["horizons"] if one["epochs"] == epochs}


def _scales(path: Path, smallest: int) -> Array:
    rows = [(row.number("grad_sqr"), row.number("grad_var")) for row in read_rows(path, _COLUMNS, _OTHERS)]
    sqr, var = np.array(rows).reshape(-1, 2).T
    known = (sqr > 0) & (var > 0)
    return np.where(known, smallest * var / np.where(known, sqr, 1.0), np.nan)


def _over_models(models: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for epochs in sorted({one["epochs"] for model in models for one in model["horizons"]}):
        each = [one["errors"] for one in _of_horizon(models, epochs).values()]
        means = {
            name: {key: statistics.fmean(its[name][key] for its in each) for key in ("mean", "median")}
            for name in FORECASTERS
        }
        found.append({"epochs": epochs, "errors": means})
    return found


def _print(console: Console, figures: Mapping[str, Any]) -> None:
    columns: Columns = {"forecasts": ("forecasts", "{}")} | {
        f"errors.{name}": (name, lambda its: f"{100 * its['mean']:.1f}% ({100 * its['median']:.1f}%)")
        for name in FORECASTERS
    }
    for overall in figures["all"]:
        title = f"Relative error of the noise scale, {_ahead(overall['epochs'])}: mean, median in brackets"
        rows = [*_of_horizon(figures["models"], overall["epochs"]).items(), ("mean over models", overall)]
        console.print(table_of(title, "model", columns, rows, missing=""))
    times = ", ".join(f"{name} {1000 * its:.1f}" for name, its in figures["seconds"].items())
    console.print(f"Milliseconds of a forecast: {times}.", soft_wrap=True)


def _ahead(epochs: int) -> str:
    return f"{epochs} epoch{'s' if epochs > 1 else ''} ahead"
