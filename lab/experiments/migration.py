"""Figure 8 of LB-BSP: batch sizes and times of unequal workers, and a bandwidth that is cut on the way.

The paper bounds the bandwidth of one worker to emulate a migration to a place farther away (section 5.2).
Here each worker has a network namespace of its own, and the kernel bounds that of one.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from evenpace.local.terminal import make_progress, make_table
from lab.experiments import equilibrium
from lab.experiments.config import BandwidthCut
from lab.experiments.equilibrium import Trajectory
from lab.experiments.schemes import Scheme
from lab.experiments.unequal import UnequalConfig, run_unequal
from lab.network import WorkerNetwork

Figures = dict[str, Any]

_WINDOW = 10  # iterations that medians are over
_TOLERANCE = 0.15  # tolerated imbalance: single iterations of a limited process differ by about that


def _check(cut: BandwidthCut, config: UnequalConfig) -> None:
    """Make sure that it is a cut in the middle of such a run (ValueError: it is not)."""
    if cut.worker >= len(config.shares):
        raise ValueError(f"cut of worker {cut.worker}: there are {len(config.shares)} workers, from 0")
    if not _WINDOW <= cut.iteration <= config.iterations - _WINDOW:
        raise ValueError(
            f"cut at iteration {cut.iteration}: must leave {_WINDOW} of {config.iterations} iterations "
            f"on each side"
        )


def run_migration(
    policy: str, config: UnequalConfig, cut: BandwidthCut | None, folder: Path, console: Console
) -> Figures:
    """Train under LB-BSP, and cut the bandwidth on the way.

    Args:
        config: Configuration of the run.
        cut: The cut; None for a run on this machine's loopback without one, which needs no root.

    Returns:
        The figure's values; times in seconds, batch sizes in samples.

    Raises:
        NetworkError: Namespaces cannot be made here.
        EvenpaceError: The run failed.
        ValueError: The cut does not fit the run.
    """
    if cut is not None:
        _check(cut, config)
    with contextlib.ExitStack() as stack:
        network = None if cut is None else stack.enter_context(WorkerNetwork(len(config.shares)))
        progress = stack.enter_context(make_progress(console))
        task = progress.add_task(f"lb-bsp:{policy}", total=config.iterations)
        fired: list[int] = []  # the iteration in which the cut came

        def watch(iterations: int, records: Sequence[Any]) -> None:
            progress.update(task, completed=iterations)
            if cut is not None and network is not None and iterations >= cut.iteration and not fired:
                network.limit(cut.worker, cut.mbit)
                fired.append(iterations)
                progress.update(task, description=f"lb-bsp:{policy}, bandwidth cut")

        run = run_unequal(Scheme(f"lb-bsp:{policy}", policy), config, folder, watch, network)
    whole = equilibrium.trajectory(run.records, config.total_batch_size)
    figures: Figures = {
        "workload": config.training.name,
        "policy": policy,
        "shares": dict(zip(whole.workers, config.shares, strict=True)),
        "total_batch_size": config.total_batch_size,
        "window": _WINDOW,
        "tolerance": _TOLERANCE,
        "load_average": os.getloadavg()[1],
        **_phases(whole, cut, fired),
        "iterations": whole.iterations.tolist(),
        "batch_sizes": dict(zip(whole.workers, whole.batch_sizes.T.tolist(), strict=True)),
        "times": dict(zip(whole.workers, whole.times.T.tolist(), strict=True)),
    }
    return figures


def print_phases(figures: Figures, console: Console) -> None:
    """Print the equilibrium before and after the cut."""
    table = make_table(
        f"Figure 8: {figures['workload']}, lb-bsp:{figures['policy']}",
        "phase",
        "batch sizes",
        "times ms",
        "longest of mean",
        "equal after",
    )
    for name in ("before", "after"):
        part = figures[name]
        if part is None:
            continue
        reached = "not reached" if part["reached"] is None else f"{part['reached']} iterations"
        table.add_row(
            name,
            " ".join(f"{size:.0f}" for size in part["batch_sizes"].values()),
            " ".join(f"{seconds * 1e3:.0f}" for seconds in part["times"].values()),
            f"{part['imbalance']:.2f}",
            reached,
        )
    console.print(table)
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


def _phases(whole: Trajectory, cut: BandwidthCut | None, fired: list[int]) -> Figures:
    if cut is None or not fired:
        return {"cut": None, "before": asdict(equilibrium.phase(whole, _WINDOW, _TOLERANCE)), "after": None}
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
        "before": asdict(equilibrium.phase(before, _WINDOW, _TOLERANCE)),
        "after": asdict(equilibrium.phase(after, _WINDOW, _TOLERANCE)),
    }
