"""Figure 8 of LB-BSP: batch sizes and times of unequal workers, before and after a bandwidth is cut.

Each worker runs in a network namespace of its own, on a bridge of a private range; in the middle, the kernel
(tc tbf) bounds the bandwidth of one, both ways, so that its pushes and pulls take longer: the paper emulates
a migration to a place farther away by that (section 5.2). This needs root and iproute2; with --no-cut it
needs neither, and shows the first half only. Nothing of the network stays behind. Workers with unequal shares
of this machine's cores stand for unequal GPUs. ARGUMENTS after -- go to the workload.

Example:
  evenpace lab experiment fig8 --policy proportional --cut-worker 2 --cut-at 100 --cut-to 200
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from batchsize_manager.policies import POLICIES
from evenpace.local.terminal import make_progress
from evenpace.reports import files
from idl.settings import Checked, Setting
from lab.experiments import equilibrium, plots
from lab.experiments.comparison import Evaluator
from lab.experiments.equilibrium import Trajectory
from lab.experiments.scheme_run import RunConfig
from lab.experiments.schemes import Scheme
from lab.experiments.unequal import UnequalShares, run_unequal
from lab.fields import Folder
from lab.network import WorkerNetwork
from lab.plots import save
from lab.report import Columns, table_of
from lab.workloads.by_name import Arguments, Training, WorkloadName

Figures = dict[str, Any]

_WINDOW = 10  # iterations that medians are over
_TOLERANCE = 0.15  # tolerated imbalance: single iterations of a limited process differ by about that


@dataclass(frozen=True)
class BandwidthCut(Checked):
    """A bandwidth that is cut."""

    worker: Annotated[int, Setting("From 0.", name="cut-worker", metavar="RANK", least=0)] = 1
    iteration: Annotated[
        int | None, Setting("Iteration.  [default: the middle of the run]", name="cut-at", least=1)
    ] = None
    mbit: Annotated[
        float, Setting("What is left of the bandwidth, each way.", name="cut-to", metavar="MBIT/S", above=0)
    ] = 100.0


@dataclass(frozen=True, kw_only=True)
class MigrationConfig(Checked):
    """The configuration of Figure 8."""

    workload: WorkloadName = "digits"
    policy: Annotated[str, Setting("Of the balanced run.", choices=POLICIES)] = "leader_straggler"
    # Computing takes long enough for the default cut to be bearable.
    shares: UnequalShares = (0.24, 0.16, 0.1, 0.06)
    iterations: Annotated[int, Setting("Of each training.", least=20)] = 300
    batch_size: Annotated[int, Setting("Over all workers.", least=1)] = 256
    cut: BandwidthCut = field(default_factory=BandwidthCut)
    out: Folder = Path("runs/fig8")
    no_cut: Annotated[bool, Setting("Without a cut and without network namespaces.")] = False
    arguments: Arguments = ()

    @property
    def cut_at(self) -> int | None:
        """Return the finished iterations after which the bandwidth is cut; None without a cut."""
        return None if self.no_cut else self.cut.iteration or self.iterations // 2


def run(config: MigrationConfig, console: Console, json_path: Path | None = None) -> Figures:
    """Train under LB-BSP, cut the bandwidth on the way, draw fig8.png, and print the equilibria.

    Returns the figure's values, times in seconds and batch sizes in samples, which go to fig8.json in the
    folder where there is no other path.
    """
    evaluator = Evaluator(Training(config.workload, config.arguments))
    trained = evaluator.run_config(config.shares, config.iterations, config.batch_size, snapshots=0)
    _check(config)
    config.out.mkdir(parents=True, exist_ok=True)
    figures = run_migration(config, trained, console)
    json_path = json_path or config.out / "fig8.json"
    files.write_json(figures, json_path)
    save(plots.migration(figures), config.out / "fig8.png")
    print_phases(figures, console)
    console.print(f"Figures: {json_path}, {config.out / 'fig8.png'}", soft_wrap=True)
    return figures


def _check(config: MigrationConfig) -> None:
    """Make sure that the cut is in the middle of the run (ValueError: it is not)."""
    at = config.cut_at
    if at is None:
        return
    if config.cut.worker >= len(config.shares):
        raise ValueError(f"cut of worker {config.cut.worker}: there are {len(config.shares)} workers, from 0")
    if not _WINDOW <= at <= config.iterations - _WINDOW:
        raise ValueError(
            f"cut at iteration {at}: must leave {_WINDOW} of {config.iterations} iterations on each side"
        )


def run_migration(config: MigrationConfig, trained: RunConfig, console: Console) -> Figures:
    """Train, without a cut on this machine's loopback, which needs no root; return the figure's values."""
    name, at = f"lb-bsp:{config.policy}", config.cut_at
    with contextlib.ExitStack() as stack:
        network = None if at is None else stack.enter_context(WorkerNetwork(len(config.shares)))
        progress = stack.enter_context(make_progress(console))
        task = progress.add_task(name, total=config.iterations)
        fired: list[int] = []  # the iteration in which the cut came

        def watch(iterations: int, records: Sequence[Any]) -> None:
            progress.update(task, completed=iterations)
            if network is not None and at is not None and iterations >= at and not fired:
                network.limit(config.cut.worker, config.cut.mbit)
                fired.append(iterations)
                progress.update(task, description=f"{name}, bandwidth cut")

        measured = run_unequal(Scheme(name, config.policy), trained, config.out / "logs", watch, network)
    whole = equilibrium.trajectory(measured.records, config.batch_size)
    return {
        "workload": config.workload,
        "policy": config.policy,
        "shares": dict(zip(whole.workers, config.shares, strict=True)),
        "total_batch_size": config.batch_size,
        "window": _WINDOW,
        "tolerance": _TOLERANCE,
        "load_average": os.getloadavg()[1],
        **_phases(whole, config.cut, fired),
        "iterations": whole.iterations.tolist(),
        "batch_sizes": dict(zip(whole.workers, whole.batch_sizes.T.tolist(), strict=True)),
        "times": dict(zip(whole.workers, whole.times.T.tolist(), strict=True)),
    }


def print_phases(figures: Figures, console: Console) -> None:
    """Print the equilibrium before and after the cut."""
    columns: Columns = {
        "batch_sizes": ("batch sizes", lambda sizes: " ".join(f"{size:.0f}" for size in sizes.values())),
        "times": ("times ms", lambda times: " ".join(f"{1e3 * seconds:.0f}" for seconds in times.values())),
        "imbalance": ("longest of mean", "{:.2f}"),
        "reached": ("equal after", "{} iterations"),
    }
    title = f"Figure 8: {figures['workload']}, lb-bsp:{figures['policy']}"
    rows = ((name, figures[name]) for name in ("before", "after") if figures[name] is not None)
    console.print(table_of(title, "phase", columns, rows, missing="not reached"))
    cut = figures["cut"]
    if cut is not None:
        console.print(
            f"{cut['worker']} cut to {cut['mbit']:g} Mbit/s after iteration {cut['iteration']}: "
            f"its iterations took {cut['slowdown']:.2f} times as long right after."
        )
    console.print(
        f"Sizes and times are medians over the last {figures['window']} iterations of each phase; "
        f"times count as equal while the longest is at most {1 + figures['tolerance']:g} times the mean."
    )


def _phases(whole: Trajectory, cut: BandwidthCut, fired: list[int]) -> Figures:
    def phase(part: Trajectory) -> Figures:
        return asdict(equilibrium.phase(part, _WINDOW, _TOLERANCE))

    if not fired:
        return {"cut": None, "before": phase(whole), "after": None}
    # The iteration in which it came is of neither kind: a part of it was before.
    before, after = whole.part(0, fired[0]), whole.part(fired[0] + 1)
    worker = whole.workers[cut.worker]
    return {
        "cut": {
            "worker": worker,
            "iteration": fired[0],
            "mbit": cut.mbit,
            "slowdown": equilibrium.slowdown(before, after, worker, _WINDOW),
        },
        "before": phase(before),
        "after": phase(after),
    }
