"""Train with each scheme while stress-ng competes with the workers, on the same schedule.

ARGUMENTS after -- are the workload's own options, as lab/experiments/train_workload.py takes them.

Example:
  evenpace lab experiment contention --schemes bsp,lb-bsp:ema,lb-bsp:auto --iterations 300
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from rich.console import Console

from evenpace.local.terminal import make_progress
from evenpace.reports import files
from idl.settings import Setting
from lab.experiments import analysis, plots
from lab.experiments.containers import require_engine
from lab.experiments.contended import ContendedOptions, ContendedRun, run_contended
from lab.experiments.contention_schedule import write_schedule
from lab.experiments.scheme_run import ParameterSnapshot, RunConfig
from lab.experiments.schemes import Scheme, choose_schemes
from lab.fields import Folder
from lab.report import Columns, table_of
from lab.workloads.by_name import BATCH_SIZES, Training, WorkloadName
from lab.workloads.common import Workload, evaluate
from worker.flat_order import BUCKET_MB, FlatOrder, bucket_elements
from worker.torch.flat_tensors import FlatTensors
from worker.torch.optimizer import order_of

Figures = dict[str, Any]

_TARGET = 0.98  # share of the accuracy that BSP ends with
_STATISTICS_SAMPLES = 1024  # samples for the statistics of batch normalisation


class Evaluator:
    """Evaluator of snapshots of parameters: curves of loss and accuracy on the workload's test set."""

    def __init__(self, training: Training) -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        self.training = training
        self._workload = training.make(training.options())
        groups = self._workload.optimizer.param_groups
        self._groups = [[p for p in group["params"] if p.requires_grad] for group in groups]
        self._parameters = [parameter for group in self._groups for parameter in group]

    @property
    def samples(self) -> int:
        """Return the number of training samples."""
        return len(self._workload.train_set)

    def run_config(
        self, shares: tuple[float, ...], iterations: int, total_batch_size: int, **more: Any
    ) -> RunConfig:
        """Return the configuration of a run with workers of these shares."""
        if total_batch_size > self.samples:
            raise ValueError(
                f"batch size {total_batch_size}: {self.training.name} has {self.samples} samples to train on"
            )
        return RunConfig(
            training=self.training,
            elements=sum(parameter.numel() for parameter in self._parameters),
            shares=shares,
            iterations=iterations,
            total_batch_size=total_batch_size,
            **more,
        )

    @property
    def data(self) -> str:
        """Return the data's description, for people."""
        return self._workload.data

    def curve(self, snapshots: Sequence[ParameterSnapshot]) -> list[dict[str, float]]:
        """Return seconds, updates, loss and accuracy of each snapshot, in their order."""
        return [
            {"seconds": snapshot.seconds, "updates": snapshot.updates, **self._evaluate(snapshot)}
            for snapshot in snapshots
        ]

    def _evaluate(self, snapshot: ParameterSnapshot) -> dict[str, float]:
        with torch.no_grad():
            values = FlatTensors(snapshot.parameters, self._order(snapshot.shards), self._parameters)
            for number, parameter in enumerate(self._parameters):
                parameter.copy_(values[number])
        _renew_statistics(self._workload)
        return evaluate(self._workload)

    def _order(self, shards: int) -> FlatOrder:
        if shards:
            return order_of(self._groups, [], None, shards, bucket_elements(BUCKET_MB))
        return order_of([self._parameters], [], None, 1, bucket_elements(None))


def _renew_statistics(workload: Workload) -> None:
    """Compute batch normalisation's running statistics again, since each worker has its own."""
    count = min(_STATISTICS_SAMPLES, len(workload.train_set))
    samples = [workload.train_set[i] for i in range(count)]
    batches = [workload.collate(samples[i : i + 256]) for i in range(0, count, 256)]
    torch.optim.swa_utils.update_bn(batches, workload.model)


@dataclass(frozen=True, kw_only=True)
class ContentionConfig(ContendedOptions):
    """The configuration of schemes that are compared."""

    out: Folder = Path("runs/contention")
    workload: WorkloadName = "cifarnet"
    schemes: Annotated[
        str, Setting("bsp, asp, ssp, redundant, flexrr, lb-bsp:PREDICTOR.", metavar="NAME,...")
    ] = "bsp,lb-bsp:ema,lb-bsp:narx,lb-bsp:auto,asp,ssp,redundant,flexrr"


def run(config: ContentionConfig, console: Console) -> Figures:
    """Compare the schemes, and print the figures."""
    figures = compare(choose_schemes(config.schemes), config.workload, config, console)
    print_table(figures, console)
    return figures


def compare(schemes: Sequence[Scheme], workload: str, options: ContendedOptions, console: Console) -> Figures:
    """Run all schemes under one schedule, and save report.json, iterations.csv and plots.

    They run in this order: a scheme that is normalised by another one comes after it. Returns the content of
    report.json.
    """
    if options.containers:
        require_engine()
    workers = len(options.shares) + max(scheme.backup_workers for scheme in schemes)
    schedule = options.disturbance.schedule(workers, options.iterations, options.seed)
    evaluator = Evaluator(Training(workload, options.arguments))
    batch_size = options.batch_size or BATCH_SIZES[workload]
    config = evaluator.run_config(options.shares, options.iterations, batch_size, tolerance=options.tolerance)
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    write_schedule(schedule, out / "schedule.csv")
    figures: Figures = {
        "workload": workload,
        "data": evaluator.data,
        "shares": list(config.shares),
        "iterations": config.iterations,
        "settle": options.settle,
        "total_batch_size": config.total_batch_size,
        "schedule": schedule.source,
        "unit": schedule.unit,
        "tasks": len(schedule.tasks),
        "load_average": os.getloadavg()[1],
        "schemes": {},
    }
    with (out / "iterations.csv").open("w", newline="") as stream, make_progress(console, 20) as progress:
        writer = csv.writer(stream)
        writer.writerow(_ITERATION_COLUMNS)
        for scheme in schemes:
            measured = run_contended(scheme, config, options, schedule, progress)
            writer.writerows(_iteration_rows(measured))
            stream.flush()
            figures["schemes"][scheme.name] = _figures(measured, evaluator, options.settle)
            _relate(figures["schemes"])
            # After each run, so that an experiment that is stopped keeps the runs that are done.
            files.write_json(figures, out / "report.json")
    plots.write_all(figures, out)
    console.print(f"Report, tables and plots: {out}", soft_wrap=True)
    return figures


def _figures(run: ContendedRun, evaluator: Evaluator, settle: int) -> Figures:
    """Return the figures of one run by itself; times in seconds, shares from 0 to 1."""
    scheme, records = run.scheme, run.records[settle:]
    curve = evaluator.curve(run.snapshots)
    # Without barriers from the first snapshot on, as long as all workers are there: the last is from the end.
    iteration = run.workers * analysis.per_update_seconds(
        run.records, curve[:-1], run.workers, scheme.synchronous, settle if scheme.synchronous else 0
    )
    figures: Figures = {
        "synchronous": scheme.synchronous,
        "baseline": scheme.baseline,
        "iteration_s": iteration,
        "iterations": len(run.records),
        "tasks_started": run.tasks,
        "manager_share": run.manager_cpu / run.seconds if run.seconds else None,
        "curve": curve,
        "relative_rmse": analysis.relative_rmse(records),
    }
    if scheme.synchronous and not scheme.one_by_one:
        figures["waiting_share"] = analysis.waiting_share(records)
    if scheme.sync == "bsp" and not scheme.one_by_one:
        oracle = float(np.nanmean(analysis.oracle_times(records)))
        figures["oracle_s"] = oracle
        figures["of_oracle"] = iteration / oracle
    figures["accuracy"] = curve[-1]["accuracy"]
    names = sorted({name for record in run.records for name in record["workers"]})
    figures["workers"] = {name: [_worker_row(record, name) for record in run.records] for name in names}
    return figures


def _worker_row(record: analysis.Record, name: str) -> list[float | None]:
    """Return batch size, speed, predicted speed and usage of a worker in an iteration."""
    part = record["workers"].get(name)
    if part is None:
        return [None, None, None, None]
    return [
        part["batch_size"],
        analysis.speed(part) if part["batch_size"] else None,
        part["predicted_speed"],
        part["cpu_usage"],
    ]


def _relate(schemes: dict[str, Figures]) -> None:
    """Set the schemes' figures in relation to each other."""
    ema = schemes.get("lb-bsp:ema", {}).get("relative_rmse")
    reference = schemes.get("bsp") or next(iter(schemes.values()))
    goal = _TARGET * reference["accuracy"]
    for figures in schemes.values():
        baseline = schemes.get(figures["baseline"])
        figures["of_baseline"] = figures["iteration_s"] / baseline["iteration_s"] if baseline else None
        rmse = figures["relative_rmse"]
        figures["rmse_of_ema"] = rmse / ema if rmse and ema else None
        point = analysis.reach(figures["curve"], goal)
        figures["target"] = goal
        figures["seconds_to_target"] = point["seconds"] if point else None
        figures["updates_to_target"] = point["updates"] if point else None


_TIMES: Columns = {
    "iteration_s": ("iteration s", "{:.3f}"),
    "of_baseline": ("of BSP", "{:.2f}"),
    "of_oracle": ("of oracle", "{:.2f}"),
    "waiting_share": ("waiting", "{:.0%}"),
    "manager_share": ("manager CPU", "{:.1%}"),
}
_LEARNING: Columns = {
    "relative_rmse": ("RMSE", "{:.1%}"),
    "rmse_of_ema": ("of EMA's", "{:.2f}"),
    "accuracy": ("accuracy", "{:.1%}"),
    "seconds_to_target": ("s to target", "{:.1f}"),
    "updates_to_target": ("updates to it", "{:.0f}"),
}


def print_table(figures: Figures, console: Console) -> None:
    """Print the figures that `compare` returns."""
    schemes = figures["schemes"]
    target = next(iter(schemes.values()))["target"]
    about = f"Iterations: {figures['workload']} on {figures['data']}"
    console.print(table_of(about, "scheme", _TIMES, schemes.items()))
    about = f"Prediction and learning; the target accuracy is {target:.1%}"
    console.print(table_of(about, "scheme", _LEARNING, schemes.items()))


_ITERATION_COLUMNS = (
    *("scheme", "iteration", "duration_s", "worker", "batch_size", "batch_processing_time_s"),
    *("waiting_time_s", "cpu_usage", "memory_usage", "predicted_speed"),
)


def _iteration_rows(run: ContendedRun) -> list[list[Any]]:
    parts = ("batch_size", "batch_processing_time", "waiting_time", "cpu_usage", "memory_usage")
    return [
        [
            *(run.scheme.name, record["iteration"], record["duration"], worker),
            *(part[key] for key in parts),
            part["predicted_speed"],
        ]
        for record in run.records
        for worker, part in record["workers"].items()
    ]
