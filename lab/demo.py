"""The demo: the same training on the same uneven workers, split evenly, then balanced."""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from batchsize_manager.client import ManagerClient
from evenpace.dashboard.listening import free_page_address
from evenpace.local.terminal import make_progress
from evenpace.reports import files
from evenpace.reports.run_data import RunReport, gather
from evenpace.reports.run_list import choose, live_runs
from evenpace.reports.two_runs import ComparedRun, Evaluation, TwoRuns
from evenpace.reports.two_runs_page import write_two_runs_page
from idl.errors import InvalidRequestError
from idl.measures import waiting_share
from idl.records import IterationRecord
from lab.demo_config import DemoConfig
from lab.experiments import analysis
from lab.experiments.comparison import Evaluator
from lab.experiments.scheme_run import RunConfig, SchemeRun
from lab.experiments.schemes import Scheme
from lab.experiments.unequal import run_unequal
from lab.report import Columns, table_of
from lab.workloads.by_name import Training
from rpc.address import Address
from worker.resources.cpu_limits import LimitKind, kind_here

_SNAPSHOTS = 20  # snapshots of the parameters in each run, about, for the curves of loss and accuracy
_RECENT = 10  # last iterations that the live table covers

_ITERATIONS = 84  # about so many, unless epochs are given


def run_demo(config: DemoConfig, json_path: Path | None = None) -> dict[str, Any]:
    """Run both trainings, show them live, write the report, and return the summary."""
    console = Console()
    # Each run has a manager, and so a page, of its own; a browser that stays open follows both.
    config = replace(config, http=free_page_address(config.http))
    console.print(f"Live page, while the demo runs: http://{config.http}/", soft_wrap=True)
    training = Training("digits", ("--data", config.data, "--seed", str(config.seed)))
    evaluator = Evaluator(training)
    data = config.data.partition(":")[0]
    if config.total_batch_size > evaluator.samples:
        raise InvalidRequestError(
            f"batch size {config.total_batch_size}: {data} has {evaluator.samples} training images"
        )
    os.nice(10)  # watching must not slow down what is watched
    per_epoch = -(-evaluator.samples // config.total_batch_size)
    epochs = config.epochs or max(1, _ITERATIONS // per_epoch)
    kind_name = kind_here(config.limit_kind)  # tries out which kind works here
    kind: LimitKind = "cgroup" if kind_name.startswith("cgroup") else "duty-cycle"
    console.print(
        f"{len(config.shares)} workers, limited to {', '.join(f'{s:g}' for s in config.shares)} of a core by "
        f"{kind_name}; {data}, batches of {config.total_batch_size}, {epochs} epochs"
    )
    trained = evaluator.run_config(
        config.shares, per_epoch * epochs, config.total_batch_size, limit_kind=kind, snapshots=_SNAPSHOTS
    )
    schemes = (Scheme("even", "even"), Scheme("balanced", config.policy))
    taken = {scheme.name: _train(config, trained, scheme, console) for scheme in schemes}
    runs = {name: _figures(run, evaluator, trained) for name, (run, _) in taken.items()}
    even, balanced = (run.snapshots[-1].parameters for run, _ in taken.values())
    full: dict[str, Any] = {
        "shares": config.workers,
        "iterations": len(runs["even"]["iterations"]),
        "total_batch_size": config.total_batch_size,
        "data": data,
        "limit_kind": kind_name,
        "seed": config.seed,
        "speedup": runs["even"]["iteration_s_median"] / runs["balanced"]["iteration_s_median"],
        "ideal_speedup": config.ideal_speedup,
        "parameters_max_abs_diff": float(np.abs(even - balanced).max()),
        "runs": runs,
    }
    files.write_json(full, config.out / "report.json")
    reports = {name: report for name, (_, report) in taken.items()}
    write_two_runs_page(_compared(full, reports), config.out / "report.html")
    summary = _summary(full)
    if json_path is not None:
        files.write_json(summary, json_path)
    _print_summary(console, full, config.out)
    return summary


def _compared(full: Mapping[str, Any], reports: Mapping[str, RunReport]) -> TwoRuns:
    """Return the report's values: the reports of both runs, and the demo's own figures."""
    curves = {
        name: [Evaluation(point["time_s"], point["loss"], point["accuracy"]) for point in run["progress"]]
        for name, run in full["runs"].items()
    }
    return TwoRuns(
        ComparedRun(reports["even"], "Even split", curves["even"]),
        ComparedRun(reports["balanced"], "Balanced", curves["balanced"]),
        about=f"{full['data']}, workers limited by {full['limit_kind']}",
        notes=(
            f"The ideal for these shares, with no waiting at all, is {full['ideal_speedup']:.2f} times.",
            f"After both runs no parameter differs by more than {full['parameters_max_abs_diff']:.2g}.",
        ),
        shares=full["shares"],
    )


def _train(
    config: DemoConfig, trained: RunConfig, scheme: Scheme, console: Console
) -> tuple[SchemeRun, RunReport]:
    """Run one of the two trainings, show it until its end, and return its report from its manager."""
    reports: list[RunReport] = []
    bar = make_progress()
    task = bar.add_task(f"{scheme.name}: starting", total=trained.iterations)
    shown = 0  # records
    with Live(bar, console=console, refresh_per_second=4) as live:

        def watch(done: int, records: Sequence[IterationRecord]) -> None:
            nonlocal shown
            bar.update(task, completed=done, description=f"{scheme.name} ({scheme.policy})")
            if len(records) > shown:
                shown = len(records)
                live.update(Group(bar, _table(config, records[-_RECENT:])))

        def end(manager: Address) -> None:
            with ManagerClient(manager) as client:
                runs = live_runs(client, f"the manager of the demo's run {scheme.name!r}")
                reports.append(gather(choose(runs, "default"), time.time(), lambda count: None))

        run = run_unequal(
            scheme, trained, config.out / scheme.name, watch, more=("--http", str(config.http)), end=end
        )
    if not console.is_terminal:
        console.line()  # there, rich leaves the last one open
    return run, reports[0]


def _table(config: DemoConfig, recent: Sequence[IterationRecord]) -> Table:
    """Make a table of the workers over the last iterations."""
    table = Table(box=None, pad_edge=False)
    for column in ("worker", "share", "batch size", "processing ms", "waiting", "samples/s"):
        table.add_column(column, justify="left" if column == "worker" else "right")
    iterations = [record.parts for record in recent]
    latest = iterations[-1]
    for worker, share in config.workers.items():
        parts = [iteration[worker] for iteration in iterations if worker in iteration]
        if worker not in latest or not parts:
            table.add_row(worker, f"{share:g}", "-", "-", "-", "-")
            continue
        times = [part.batch_processing_time for part in parts]
        table.add_row(
            worker,
            f"{share:g}",
            str(latest[worker].batch_size),
            f"{statistics.median(times) * 1e3:.0f}",
            f"{waiting_share(sum(part.waiting_time for part in parts), sum(times)):.0%}",
            f"{sum(part.batch_size for part in parts) / sum(times):.0f}",
        )
    return table


def _figures(run: SchemeRun, evaluator: Evaluator, trained: RunConfig) -> dict[str, Any]:
    """Return the figures of one run, for the report's JSON."""
    whole = [record for record in run.records if record["total"] == trained.total_batch_size]
    workers = len(trained.shares)
    progress = [
        {
            "time_s": point["seconds"],
            "iteration": point["updates"] // workers,
            "loss": point["loss"],
            "accuracy": point["accuracy"],
        }
        for point in evaluator.curve(run.snapshots)
    ]
    return {
        "policy": run.scheme.policy,
        "iteration_s_median": statistics.median(record["duration"] for record in run.records),
        "waiting_share": analysis.waiting_share(run.records),
        "accuracy": progress[-1]["accuracy"],
        "wall_s": progress[-1]["time_s"],
        "batch_sizes": {
            name: part["batch_size"] for name, part in (whole or run.records)[-1]["workers"].items()
        },
        "iterations": run.records,
        "progress": progress,
    }


def _summary(full: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("iteration_s_median", "waiting_share", "accuracy")
    even, balanced = full["runs"]["even"], full["runs"]["balanced"]
    return {
        "shares": list(full["shares"].values()),
        "iterations": full["iterations"],
        "total_batch_size": full["total_batch_size"],
        "even": {key: even[key] for key in keys},
        "balanced": {
            **{key: balanced[key] for key in keys},
            "batch_sizes": list(balanced["batch_sizes"].values()),
        },
        "speedup": full["speedup"],
        "ideal_speedup": full["ideal_speedup"],
        "parameters_max_abs_diff": full["parameters_max_abs_diff"],
    }


def _print_summary(console: Console, full: Mapping[str, Any], out: Path) -> None:
    columns: Columns = {
        "iteration_s_median": ("iteration ms", lambda seconds: f"{1e3 * seconds:.0f}"),
        "waiting_share": ("waiting", "{:.0%}"),
        "accuracy": ("accuracy", "{:.1%}"),
        "batch_sizes": ("batch sizes", lambda sizes: " ".join(map(str, sizes.values()))),
    }
    console.print(table_of("Even against balanced", "run", columns, full["runs"].items()))
    console.print(
        f"Balanced is {full['speedup']:.2f} times as fast as even (the shares allow "
        f"{full['ideal_speedup']:.2f}); the final parameters differ by "
        f"{full['parameters_max_abs_diff']:.1e} at most."
    )
    console.print(f"Report: {out / 'report.html'}, {out / 'report.json'}", soft_wrap=True)
