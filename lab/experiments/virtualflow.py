"""Table 4 of VirtualFlow: splits over unlike GPUs, and their gains; nothing is trained.

The splits (section 6.5.1) are solved by the manager's solver. The published profiles have no times of
ResNet-50 on V100 and P100, which Table 4 is about. So its splits are solved from what the paper says of the
two: a V100 is four times as fast. For the models that the profiles have, the same sets of GPUs are solved
from measured times, with as many micro-batches at once as fit. Steps of many GPUs together were not
published, so nothing here includes communication; how well a profile foresees times is told from measurements
that are left out of it.

Example:
  evenpace lab experiment virtualflow --curves throughput.csv
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from batchsize_manager.learning.profiles import Profile, Step
from batchsize_manager.planning import Forecast, Recommendation, recommend
from batchsize_manager.planning_config import Task
from batchsize_manager.policies.step_times import StepTimes
from idl.settings import Setting
from lab.bench.step_times import GpuCurves, read_step_times
from lab.report import Columns, table_of

_TOTAL = 8192  # samples, as in Table 4
_FACTOR = 4.0  # speed of a V100 over that of a P100, as section 6.5.1 says of ResNet-50
_UNIT = 512  # samples that all splits of Table 4 are multiples of
_MICRO_BATCH = 16  # samples, for the profiles; as many at once as fit
_SETS = {  # numbers of V100 and P100, and what Table 4 and section 6.5.1 say
    "H1": (2, 2, "3072:1024; V100 alone is faster"),
    "H2": (2, 4, "3072:512"),
    "H3": (2, 8, "2048:512; 1.42 of V100, 1.52 of P100"),
}
_COLUMNS: Columns = {
    "split": ("samples each", "{}"),
    "over_v100": ("over V100 alone", "{:.2f}"),
    "over_p100": ("over P100 alone", "{:.2f}"),
    "over_even": ("over even", "{:.2f}"),
}
_PAPER_ERROR = 0.056  # of predicted throughputs, Figure 14


@dataclass(frozen=True)
class VirtualFlowConfig:
    """The configuration of the splits."""

    curves: Annotated[
        Path | None,
        Setting(
            "VirtualFlow's published profiles, a CSV with model,gpu,batch_size,examples_per_s.",
            folder=False,
            exists=True,
        ),
    ] = None


def run(config: VirtualFlowConfig, console: Console) -> dict[str, Any]:
    """Solve Table 4's sets of GPUs, and print ours beside the paper's.

    Returns `{"splits": [{"set", "split", "paper": text, "over_v100", "over_p100", "over_even": ratio}],
    "models": [the same, with "model"], "errors": {model: relative error}}`. Ratios are throughputs over those
    of the GPUs of one kind alone, and of an even split; None where a batch does not fit.
    """
    units = _TOTAL // _UNIT
    ratio = {
        gpu: Profile(gpu, "ratio", (Step(1, seconds), Step(units, seconds * units)))
        for gpu, seconds in (("V100", 1.0), ("P100", _FACTOR))
    }
    splits = [_row(name, ratio, Task(units), _UNIT) for name in _SETS]
    curves = {} if config.curves is None else read_step_times(config.curves)
    models = []
    for model, gpus in curves.items():
        if {"V100", "P100"} <= set(gpus):
            profiles = {gpu: published_profile(gpu, model, times) for gpu, times in gpus.items()}
            task = Task(_TOTAL, _MICRO_BATCH, at_once=_TOTAL // _MICRO_BATCH)
            models += [{"model": model, **_row(name, profiles, task)} for name in _SETS]
    figures = {"splits": splits, "models": models, "errors": interpolation_errors(curves)}
    _print(console, figures)
    return figures


def interpolation_errors(curves: GpuCurves) -> dict[str, float]:
    """Return the mean relative error of times between powers of two, which are interpolated; by model."""
    errors: dict[str, float] = {}
    for model, gpus in curves.items():
        off = []
        for times in gpus.values():
            measured = dict(zip(times.sizes, times.seconds, strict=True))
            known = {size: seconds for size, seconds in measured.items() if not size & (size - 1)}
            if not known:
                continue
            between = StepTimes(tuple(known), tuple(known.values()))
            off += [
                abs(between.time(size) / seconds - 1)
                for size, seconds in measured.items()
                if size not in known and size < max(known)
            ]
        if off:
            errors[model] = statistics.fmean(off)
    return errors


def published_profile(gpu: str, model: str, times: StepTimes) -> Profile:
    """Return the profile of published times, of which the largest batch is all that fits."""
    return Profile(gpu, model, tuple(map(Step, times.sizes, times.seconds)), limit=times.sizes[-1])


def _row(name: str, profiles: Mapping[str, Profile], task: Task, unit: int = 1) -> dict[str, Any]:
    """Return the figures of one set of GPUs, with counts times `unit` samples."""
    v100, p100, paper = _SETS[name]
    found = recommend([(profiles["V100"], v100), (profiles["P100"], p100)], task)
    return {
        "set": f"{name}: {v100} V100 + {p100} P100",
        "split": _split(found.balanced, unit),
        "paper": paper,
        "over_v100": _over(found, found.alone["V100"]),
        "over_p100": _over(found, found.alone["P100"]),
        "over_even": _over(found, found.even),
    }


def _split(forecast: Forecast | None, unit: int) -> str | None:
    """Return the samples of each V100 and of each P100, in words."""
    if forecast is None:
        return None
    parts = []
    for _, shares in groupby(forecast.shares, key=lambda share: share.device):
        counts = sorted({share.samples * unit for share in shares})
        parts.append("-".join(map(str, counts[:1] + counts[1:][-1:])))
    return ":".join(parts)


def _over(found: Recommendation, other: Forecast | None) -> float | None:
    return None if found.balanced is None or other is None else other.seconds / found.balanced.seconds


def _print(console: Console, figures: Mapping[str, Any]) -> None:
    title = f"ResNet-50, {_TOTAL} samples, a V100 as fast as {_FACTOR:g} P100"
    columns: Columns = {**_COLUMNS, "paper": ("VirtualFlow", "{}")}
    rows = ((row["set"], _fitting(row)) for row in figures["splits"])
    console.print(table_of(title, "GPUs", columns, rows, missing=""))
    if figures["models"]:
        columns = {"set": ("GPUs", "{}"), **_COLUMNS}
        rows = ((row["model"], _fitting(row)) for row in figures["models"])
        console.print(table_of(f"Published profiles, {_TOTAL} samples", "model", columns, rows, missing=""))
        errors = {**figures["errors"], "VirtualFlow, predicted and measured throughputs": _PAPER_ERROR}
        rows = ((name, {"error": error}) for name, error in errors.items())
        columns = {"error": ("mean error", "{:.1%}")}
        console.print(table_of("Times between powers of two, interpolated", "model", columns, rows))


def _fitting(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**row, "split": row["split"] or "does not fit"}
