"""Balancing policies played against measured step times, with noise and changes of speed.

Each policy runs in a real job (`balance_play`), once for each seed and cluster; all see the same noise. The
best split of each part of the run, before and after each change, is found exactly from the measurements
(`step_times` says how these are read).

The JSON has, with `null` for what never happens::

    {"options": {"curves": file or "made-up", "noise": share, "spikes": share, "seeds": [number],
                 "iterations": count},
     "clusters": [{"model": name, "gpus": [worker], "total": samples,
                   "changes": [{"iteration": number, "worker": name, "factor": number}],
                   "policies": {name: {"summary": summary, "runs": [run]}}}]}

    summary: {"ratio": {"mean", "max"}, "noisy_ratio": {"mean", "max"},
              "batch_size_changes": {"mean", "max"},
              "parts": [{"iterations_to_close": {"median", "max", "never"}, "ratio": {"mean", "max"}}]}
    run: {"ratio": number, "noisy_ratio": number, "batch_size_changes": count,
          "parts": [{"start": iteration, "best_s": seconds, "iterations_to_close": count,
                     "ratio": number, "noisy_ratio": number}]}

`iterations_to_close` counts the iterations before three in a row whose slowest worker takes at most 1.05
times as long as with the best split, without noise. `ratio` is the mean iteration time over that of the
best split, both without noise; `noisy_ratio` is the same of what is measured, with the same noise for both.
A split that is not the best can have less noise, since fewer of its workers take the longest time: that ratio
may lie below 1. `never` counts runs; they are left out of the median and of the maximum.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from rich.console import Console

from batchsize_manager.policies import POLICIES, PolicyOptions, make_policy
from evenpace.lab.bench.balance_play import CLOSE, Play, best_split, play
from evenpace.lab.bench.config import BalanceConfig, Change, Noise
from evenpace.lab.bench.step_times import (
    Cluster,
    GpuCurves,
    made_up_step_times,
    make_cluster,
    read_step_times,
)
from evenpace.lab.terminal import make_progress, make_table
from evenpace.reports import files, style

_DEFAULT_SLOWDOWN = 2.0  # factor on a worker's times from the middle of a run on


def run(
    config: BalanceConfig, json_path: Path | None = None, plot_path: Path | None = None
) -> dict[str, Any]:
    """Play policies against clusters, print the figures, and write them.

    Args:
        config: Policies, clusters and noise.
        json_path: File for the figures.
        plot_path: File for a picture of the first seed's iteration times in each cluster.

    Raises:
        ValueError: The curves, or what was chosen from them, are wrong.
        OSError: A file cannot be read or written.
    """
    console = Console()
    curves = made_up_step_times() if config.curves is None else read_step_times(config.curves)
    clusters = _clusters(curves, config)
    names = config.policies or tuple(POLICIES)
    first: list[dict[str, Play]] = []  # of each cluster, the first seed's plays
    figures: dict[str, Any] = {
        "options": {
            "curves": "made-up" if config.curves is None else config.curves.name,
            "noise": config.noise.deviation,
            "spikes": config.noise.spikes,
            "seeds": [config.noise.seed + n for n in range(config.seeds)],
            "iterations": config.iterations,
        },
        "clusters": [],
    }
    with make_progress(console, transient=True) as bar:
        task = bar.add_task("playing", total=len(clusters) * len(names) * config.seeds)
        for cluster in clusters:
            changes = _changes(cluster, config)
            found: dict[str, Any] = {}
            first.append({})
            for name in names:
                runs = []
                for seed in figures["options"]["seeds"]:
                    noise = Noise(config.noise.deviation, config.noise.spikes, seed)
                    policy = make_policy(name, PolicyOptions(tolerance=config.tolerance))
                    played = play(policy, cluster, changes, noise, config.iterations)
                    first[-1].setdefault(name, played)
                    runs.append(played.figures())
                    bar.advance(task)
                found[name] = {"summary": _summary(runs), "runs": runs}
            figures["clusters"].append(
                {
                    "model": cluster.model,
                    "gpus": list(cluster.workers),
                    "total": cluster.total,
                    "changes": [asdict(change) for change in changes],
                    "policies": found,
                }
            )
    for cluster_figures in figures["clusters"]:
        _print(console, cluster_figures)
    console.print(f"Close: {CLOSE - 1:.0%} above the best, three times in a row. Seeds: {config.seeds}.")
    if json_path is not None:
        files.write_json(figures, json_path)
        console.print(f"Figures: {json_path}")
    if plot_path is not None:
        _plot(clusters, first, plot_path)
        console.print(f"Picture: {plot_path}")
    return figures


def _clusters(curves: GpuCurves, config: BalanceConfig) -> list[Cluster]:
    return [
        make_cluster(curves, model, config.gpus or tuple(curves.get(model, ())), total)
        for model in config.models or tuple(model for model in curves if len(curves[model]) > 1)
        for total in config.totals or (None,)
    ]


def _changes(cluster: Cluster, config: BalanceConfig) -> tuple[Change, ...]:
    if config.changes is not None:
        return config.changes
    tables = [times.table() for times in cluster.workers.values()]
    best = best_split(tables, [times.bounds.minimum for times in cluster.workers.values()], cluster.total)
    return (Change(config.iterations // 2, list(cluster.workers)[int(best.argmax())], _DEFAULT_SLOWDOWN),)


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts = []
    for same in zip(*(its["parts"] for its in runs), strict=True):
        reached = [n for part in same if (n := part["iterations_to_close"]) is not None]
        parts.append(
            {
                "iterations_to_close": {
                    "median": statistics.median(reached) if reached else None,
                    "max": max(reached, default=None),
                    "never": len(same) - len(reached),
                },
                "ratio": _mean_and_max([part["ratio"] for part in same]),
            }
        )
    names = ("ratio", "noisy_ratio", "batch_size_changes")
    return {**{name: _mean_and_max([its[name] for its in runs]) for name in names}, "parts": parts}


def _mean_and_max(values: Sequence[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "max": max(values)}


# -- showing


def _print(console: Console, figures: Mapping[str, Any]) -> None:
    changes = ", ".join(f"{c['worker']} x{c['factor']:g} at {c['iteration']}" for c in figures["changes"])
    parts = len(next(iter(figures["policies"].values()))["summary"]["parts"])
    table = make_table(
        f"{figures['model']}, {figures['total']} samples: {', '.join(figures['gpus'])}"
        + (f"; {changes}" if changes else ""),
        *("policy", "iterations to close"),
        *(f"after change {n}" if parts > 2 else "after the change" for n in range(1, parts)),
        *("time / best", "with noise", "changes of sizes"),
        no_wrap=True,
    )
    for name, its in figures["policies"].items():
        summary = its["summary"]
        table.add_row(
            name,
            *(_reached(part["iterations_to_close"]) for part in summary["parts"]),
            f"{summary['ratio']['mean']:.3f}",
            f"{summary['noisy_ratio']['mean']:.3f}",
            f"{summary['batch_size_changes']['mean']:.0f}",
        )
    console.print(table)


def _reached(counts: Mapping[str, Any]) -> str:
    if counts["median"] is None:
        return "never"
    never = f", {counts['never']} never" if counts["never"] else ""
    return f"{counts['median']:g} (max {counts['max']}{never})"


def _plot(clusters: Sequence[Cluster], plays: Sequence[Mapping[str, Play]], path: Path) -> None:
    """Plot each cluster's iteration times over the best split's, without noise."""
    with rc_context(style.STYLE):
        figure = Figure(figsize=(9, 2.6 * len(clusters)), layout="constrained")
        panels = figure.subplots(len(clusters), 1, squeeze=False)[:, 0]
        for cluster, axes, found in zip(clusters, panels, plays, strict=True):
            for n, (name, played) in enumerate(found.items()):
                colour = style.COLOURS[n % len(style.COLOURS)]
                axes.plot(played.times / played.best, color=colour, label=name, drawstyle="steps-post")
            axes.axhline(CLOSE, color=style.GREY, linestyle=":")
            axes.set_title(cluster.name)
            axes.set_ylabel("time / best")
            axes.set_ylim(bottom=1)
        panels[-1].set_xlabel("iteration")
        panels[0].legend(loc="upper right", ncols=len(plays[0]))
        figure.savefig(path, format="png", dpi=130)
