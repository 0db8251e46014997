"""Figures 6 and 7 of LB-BSP: ways to coordinate workers of unequal speed, compared by efficiency.

Each scheme is run with each workload and seed, and its snapshots are evaluated after each run;
`lab.experiments.efficiency` has the definitions of the figures.
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from batchsize_manager.policies import POLICIES
from evenpace.local.terminal import make_progress
from evenpace.reports import files
from lab.experiments import efficiency
from lab.experiments.comparison import Evaluator
from lab.experiments.config import CoordinationConfig
from lab.experiments.scheme_run import SchemeRun
from lab.experiments.schemes import SCHEMES, Scheme
from lab.experiments.unequal import UnequalConfig, run_unequal
from lab.report import Columns, table_of
from lab.workloads.by_name import Training

Figures = dict[str, Any]

BASELINE = "bsp"
COORDINATION = (BASELINE, "asp", "ssp", "lb-bsp")  # what the paper compares on GPUs
_TARGET = 0.98  # share of the accuracy that BSP ends with, unless a target is given


@dataclass(frozen=True)
class TrainedWorkload:
    """Workload that is trained with every scheme."""

    training: Training  # the workload and its options
    iterations: int  # of a synchronous scheme; the others make as many updates
    total_batch_size: int  # over all workers
    target: float | None = None  # accuracy to be reached, from 0 to 1; None for 98% of what BSP ends with


def choose(names: Sequence[str], policies: Sequence[str]) -> list[Scheme]:
    """Return the schemes of these names, BSP first; `lb-bsp` stands for one scheme with each policy.

    Raises:
        ValueError: There is no such scheme or policy.
    """
    for name in names:
        if name not in COORDINATION:
            raise ValueError(f"no scheme {name!r}; there are {', '.join(COORDINATION)}")
    for policy in policies:
        if policy not in POLICIES:
            raise ValueError(f"no policy {policy!r}; there are {', '.join(POLICIES)}")
    chosen: list[Scheme] = []
    for name in dict.fromkeys((BASELINE, *names)):
        if name == "lb-bsp":
            chosen += [Scheme(f"lb-bsp:{policy}", policy) for policy in dict.fromkeys(policies)]
        else:
            chosen.append(SCHEMES[name])
    return chosen


def compare(
    jobs: Sequence[TrainedWorkload],
    schemes: Sequence[Scheme],
    shared: CoordinationConfig,
    json_path: Path,
    console: Console,
) -> Figures:
    """Run every scheme with every job and seed; the figures are saved after each run.

    Args:
        schemes: Schemes, as `choose` returns them.

    Returns:
        The content of the file.

    Raises:
        EvenpaceError: A run failed.
        ValueError: A batch size or a target does not fit.
    """
    evaluators = [Evaluator(job.training) for job in jobs]
    configs = [_config(*pair, shared) for pair in zip(jobs, evaluators, strict=True)]
    figures: Figures = {
        "shares": list(shared.shares),
        "seeds": list(shared.seeds),
        "settle": shared.settle,
        "load_average": os.getloadavg()[1],
        "workloads": {},
    }
    with make_progress(console, 44) as progress:
        for job, evaluator, config in zip(jobs, evaluators, configs, strict=True):
            name = job.training.name
            entry: Figures = {
                "data": evaluator.data,
                "iterations": job.iterations,
                "total_batch_size": job.total_batch_size,
                "schemes": {},
            }
            figures["workloads"][name] = entry
            for scheme in schemes:
                entry["schemes"][scheme.name] = {"synchronous": scheme.synchronous, "runs": []}
                for seed in shared.seeds:
                    what = f"{name}, {scheme.name}, seed {seed}"
                    task = progress.add_task(what, total=job.iterations)
                    run = run_unequal(
                        scheme,
                        _with_seed(config, seed),
                        shared.out / name / f"{scheme.name.replace(':', '-')}-{seed}",
                        lambda done, _, task=task: progress.update(task, completed=done),  # type: ignore[misc]
                    )
                    shown = _run_figures(run, evaluator, config, round(shared.settle * job.iterations))
                    entry["schemes"][scheme.name]["runs"].append({"seed": seed, **shown})
                    relate(entry, job.target)
                    files.write_json(figures, json_path)
    return figures


def relate(entry: Figures, target: float | None) -> None:
    """Add a workload's figures relative to BSP and to the target accuracy.

    Args:
        entry: Figures of one workload, with `runs` for each scheme; gets `target`, and each scheme its means
            over the seeds and `of_bsp`.
        target: None for 98% of the accuracy that BSP ends with, in the mean over its runs.
    """
    schemes = entry["schemes"]
    reference = statistics.fmean(run["accuracy"] for run in schemes[BASELINE]["runs"])
    goal = _TARGET * reference if target is None else target
    entry["target"] = goal
    for figures in schemes.values():
        for run in figures["runs"]:
            point = efficiency.crossing(run["curve"], goal)
            run["updates_to_target"], run["seconds_to_target"] = point or (None, None)
        figures.update(efficiency.summarise(figures["runs"]))
        figures["accuracy"] = statistics.fmean(run["accuracy"] for run in figures["runs"])
        figures["reached"] = sum(run["updates_to_target"] is not None for run in figures["runs"])
    means = {name: {m: figures[m] for m in efficiency.MEASURES} for name, figures in schemes.items()}
    for name, shares in efficiency.relative(means, BASELINE).items():
        schemes[name]["of_bsp"] = shares


def print_efficiency(figures: Figures, console: Console) -> None:
    """Print Figure 6 as tables, one for each workload."""
    for name, entry in figures["workloads"].items():
        columns: Columns = {
            "per_update_ms": ("ms/update", "{:.1f}"),
            "of_bsp.per_update_s": ("of BSP", "{:.2f}"),
            "shown_updates": (f"updates to {entry['target']:.1%}", "{}"),
            "of_bsp.updates_to_target": ("of BSP", "{:.2f}"),
            "seconds_to_target": ("s to it", "{:.1f}"),
            "of_bsp.seconds_to_target": ("of BSP", "{:.2f}"),
        }
        rows = [
            (
                scheme,
                {
                    **values,
                    "per_update_ms": values["per_update_s"] * 1e3,
                    "shown_updates": _updates(values),
                },
            )
            for scheme, values in entry["schemes"].items()
        ]
        console.print(table_of(f"Figure 6: {name} on {entry['data']}", "scheme", columns, rows, no_wrap=True))


def print_accuracy(figures: Figures, console: Console) -> None:
    """Print the accuracies that the curves of Figure 7 end with."""
    columns: Columns = {
        "epochs": ("epochs", "{:.1f}"),
        "accuracy": ("accuracy", "{:.1%}"),
        "best": ("best", "{:.1%}"),
    }
    for name, entry in figures["workloads"].items():
        rows = []
        for scheme, values in entry["schemes"].items():
            curves = [run["curve"] for run in values["runs"]]
            epochs = statistics.fmean(curve[-1]["epochs"] for curve in curves)
            best = statistics.fmean(max(point["accuracy"] for point in curve) for curve in curves)
            rows.append((scheme, {**values, "epochs": epochs, "best": best}))
        console.print(table_of(f"Figure 7: {name} on {entry['data']}", "scheme", columns, rows, no_wrap=True))


def _updates(values: Mapping[str, Any]) -> str:
    """Return the updates to the target in words."""
    if values["updates_to_target"] is not None:
        return f"{values['updates_to_target']:.0f}"
    runs = len(values["runs"])
    return "not reached" if runs == 1 else f"not reached ({values['reached']} of {runs})"


def _config(job: TrainedWorkload, evaluator: Evaluator, shared: CoordinationConfig) -> UnequalConfig:
    if job.total_batch_size > evaluator.samples:
        raise ValueError(
            f"batch size {job.total_batch_size}: {job.training.name} has {evaluator.samples} samples to "
            f"train on"
        )
    return UnequalConfig(
        training=job.training,
        elements=evaluator.elements,
        shares=shared.shares,
        iterations=job.iterations,
        total_batch_size=job.total_batch_size,
        limit_kind=shared.limit_kind,
        shards=shared.shards,
    )


def _with_seed(config: UnequalConfig, seed: int) -> UnequalConfig:
    training = config.training
    arguments = (*training.arguments, "--seed", str(seed))
    return replace(config, training=Training(training.name, arguments))


def _run_figures(run: SchemeRun, evaluator: Evaluator, config: UnequalConfig, settle: int) -> Figures:
    """Return the figures of one run by itself."""
    workers = len(config.shares)
    per_epoch = -(-evaluator.samples // config.total_batch_size) * workers  # updates
    curve = [{**point, "epochs": point["updates"] / per_epoch} for point in evaluator.curve(run.snapshots)]
    synchronous = run.scheme.synchronous
    return {
        "per_update_s": efficiency.per_update_seconds(run.records, curve, workers, synchronous, settle),
        "accuracy": curve[-1]["accuracy"],
        "batch_sizes": _last_batch_sizes(run),
        "curve": curve,
    }


def _last_batch_sizes(run: SchemeRun) -> dict[str, int]:
    if not run.records:  # without barriers the slowest worker may not have finished one
        return {}
    return {name: part["batch_size"] for name, part in run.records[-1]["workers"].items()}
