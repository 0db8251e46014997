"""Figure 11 of LB-BSP: what balancing costs, with simulated workers over real connections.

The cost is the manager's part of an iteration; the paper has it for 96 workers. Workers are simulated over
real connections; their speeds change as under contention, so that predictors have something to learn.
Iterations follow each other after a short pause instead of a second of computing: the manager's work is the
same, and a thousand of them take no quarter of an hour.

Example:
  evenpace lab experiment fig11 --workers 32,64,96 --predictor auto
"""

import statistics
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import psutil
from rich.console import Console
from rich.progress import track

from evenpace.local.cluster import service
from idl.settings import Checked, Setting
from lab.bench.connected_workers import Load
from lab.fields import numbers
from lab.report import Columns, table_of
from predictors import PREDICTORS, PredictorOptions
from worker.resources.monitors import ResourceMonitor

ITERATION_SECONDS = 1.0  # seconds of an iteration to which the shares refer
_WARM_UP = 20  # rounds that do not count
_PAUSE_SECONDS = 0.02  # between rounds, so that fits have rounds beside them
_PAPER = {96: 1.1}  # per cent of the iteration, by workers; the paper's text has the largest cluster only
_COLUMNS: Columns = {
    "mean_ms": ("mean ms", "{:.2f}"),
    "p5_ms": ("5%", "{:.2f}"),
    "p95_ms": ("95%", "{:.2f}"),
    "during": ("during fits", "{0[during_fits_ms]:.2f} ({0[rounds_during_fits]})"),
    "between_fits_ms": ("between fits", "{:.2f}"),
    "share": ("share", "{:.2%}"),
    "paper": ("paper", "below {}%"),
}
_MONITOR_SAMPLES = 50  # measurements of a worker's own part


@dataclass(frozen=True)
class OverheadConfig(Checked):
    """The configuration of the measurements, one for each number of workers."""

    workers: Annotated[tuple[int, ...], numbers("workers", "Numbers of workers.", "COUNT,...", 1)] = (
        32,
        64,
        96,
    )
    iterations: Annotated[int, Setting("Of each measurement.", least=20)] = 600
    predictor: Annotated[
        str, Setting("Predicts the speeds; auto: the best of all for each worker.", choices=PREDICTORS)
    ] = "auto"
    learning: PredictorOptions = field(default_factory=lambda: PredictorOptions(first_fit=200))


def run(config: OverheadConfig, console: Console) -> dict[str, Any]:
    """Measure, print a table, and return the figures."""
    rows = [_measure(count, config) for count in config.workers]
    predictor = config.predictor
    figures = {
        "predictor": predictor,
        "iterations": config.iterations,
        "iteration_s": ITERATION_SECONDS,
        "worker_ms": _worker_part() * 1e3,
        "sizes": rows,
    }
    title = f"The manager's part of an iteration of {ITERATION_SECONDS:g} s, predicting with {predictor}"
    shown = (
        {**row, "paper": _PAPER.get(row["workers"]), "during": row if row["rounds_during_fits"] else None}
        for row in rows
    )
    console.print(table_of(title, "workers", _COLUMNS, ((str(row["workers"]), row) for row in shown)))
    console.print(
        f"The worker's own part (usage, stopwatch) takes {figures['worker_ms']:.2f} ms. "
        "Medians during and between fits; the paper's share includes the workers' part."
    )
    return figures


def _measure(workers: int, config: OverheadConfig) -> dict[str, Any]:
    learning = config.learning
    random = np.random.default_rng(workers)
    speeds = random.uniform(50, 200, workers)
    taken = np.zeros(workers)  # share of each worker's CPU that others take
    rounds, fitting = [], []
    options = (
        *("--workers", str(workers), "--predictor", config.predictor),
        *("--first-fit", str(learning.first_fit), "--refit-every", str(learning.refit_every)),
    )
    with service("manager", *options) as manager, Load(manager.address, workers) as load:
        trainer = _Trainer(manager.pid)
        for _ in track(range(_WARM_UP + config.iterations), description=f"{workers} workers"):
            changed = random.random(workers) < 0.025  # phases of 40 iterations on average
            taken[changed] = 0.5 - taken[changed]
            measured = speeds * (1 - taken) * random.normal(1, 0.03, workers).clip(0.8, 1.2)
            times = np.array(load.counts) / measured
            time.sleep(_PAUSE_SECONDS)
            rounds.append(load.round(times.tolist(), taken.tolist(), [0.3] * workers))
            fitting.append(trainer.is_busy())
    seconds = np.array(rounds[_WARM_UP:])
    busy = np.array(fitting[_WARM_UP:])
    least, median, most = (1e3 * np.percentile(seconds, (5, 50, 95))).tolist()
    return {
        "workers": workers,
        "mean_ms": seconds.mean() * 1e3,
        "p5_ms": least,
        "p50_ms": median,
        "p95_ms": most,
        "during_fits_ms": float(np.median(seconds[busy])) * 1e3 if busy.any() else None,
        "between_fits_ms": float(np.median(seconds[~busy])) * 1e3 if not busy.all() else None,
        "rounds_during_fits": int(busy.sum()),
        "share": seconds.mean() / ITERATION_SECONDS,
    }


class _Trainer:
    """A manager's training process, with its use of the CPU since the last look."""

    def __init__(self, manager: int) -> None:
        self._manager = psutil.Process(manager)
        self._process: psutil.Process | None = None
        self._used = 0.0

    def is_busy(self) -> bool:
        """Return whether the process has used CPU time since the last call."""
        if self._process is None:
            children = self._manager.children()
            trainers = [process for process in children if "spawn_main" in " ".join(process.cmdline())]
            if not trainers:
                return False
            self._process = trainers[0]
        times = self._process.cpu_times()
        used, self._used = self._used, times.user + times.system
        return self._used > used


def _worker_part() -> float:
    """Return the median seconds that a worker spends in each iteration on measuring itself."""
    monitor = ResourceMonitor()
    seconds = []
    for _ in range(_MONITOR_SAMPLES):
        began = time.perf_counter()
        monitor.resume()
        monitor.sample()
        seconds.append(time.perf_counter() - began)
    monitor.close()
    return statistics.median(seconds)
