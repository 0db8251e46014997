"""Play balancing policies against measured step times, with noise and changes of speed.

Each policy runs in a real job, once for each seed and cluster; all see the same noise. All figures are
relative to the best split of each part of the run, before and after each change, which is found exactly from
the measurements. The workers of a GPU that comes twice are called GPU and GPU-2.

With --all-reduce, gradients are summed in buckets while the backward pass computes the next ones, and an
iteration ends when all are summed. With --links, each worker has a link to a parameter server, and an
iteration ends when all have pulled. With --micro-batch, workers compute micro-batches one after the other,
and only the last one's backward pass overlaps with transfers.

Example:
  evenpace lab bench balance --curves step_times.csv --seeds 10 --json balance.json
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from batchsize_manager.config import TOLERANCE
from batchsize_manager.policies import POLICIES, PolicyOptions, Tolerance, make_policy
from evenpace.local.terminal import make_progress, make_table
from evenpace.reports import style
from idl.errors import InvalidRequestError
from idl.settings import Setting, check_settings
from lab.bench.all_reduce import AllReduce
from lab.bench.balance_play import CLOSE, NEAR, Change, Noise, Play, Transfers, best_split, play
from lab.bench.server_links import ServerLinks
from lab.bench.step_times import (
    Cluster,
    GpuCurves,
    in_micro_batches,
    made_up_step_times,
    make_cluster,
    read_step_times,
)
from lab.fields import parse_names

_BUCKETS = 8  # of gradients
_BACKWARD = (0.7, 0.3)  # shares of a step that are the backward pass, of each worker in turn


def _read_links(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError:
        raise InvalidRequestError(f"links {text!r}: give shares above 0, as in 0.7,0.3") from None


def _read_changes(text: str) -> tuple[Change, ...]:
    """Read the value of `--change` (ValueError: it is not of the form that the option's help gives)."""
    return () if text == "none" else tuple(map(_read_change, text.split(",")))


def _read_change(text: str) -> Change:
    iteration, _, rest = text.partition(":")
    worker, _, factor = rest.rpartition(":")
    try:
        return Change(int(iteration), worker, float(factor))
    except ValueError as error:
        raise ValueError(
            f"change {text!r}: give ITERATION:WORKER:FACTOR, as in 150:V100:2 ({error})"
        ) from error


@dataclass(frozen=True)
class BalanceConfig:
    """Policies, clusters and noise."""

    curves: Annotated[
        Path | None,
        Setting("CSV: model,gpu,batch_size,step_time_s (or examples_per_s).  [default: made-up curves]"),
    ] = None
    policies: Annotated[tuple[str, ...], Setting("May be repeated.", name="policy", choices=POLICIES)] = ()
    gpus: Annotated[
        tuple[str, ...],
        Setting(
            "Of the cluster; the same one may come twice.  [default: each that the model was measured on]",
            metavar="GPU,...",
            read=parse_names,
        ),
    ] = ()
    totals: Annotated[
        tuple[int, ...],
        Setting(
            "Samples of the whole batch; may be repeated.  [default: half of what fits into memory]",
            name="total",
            least=1,
        ),
    ] = ()
    iterations: Annotated[int, Setting("Of each run.", least=2)] = 300
    seed: Annotated[int, Setting("Of the noise; the first.", least=0)] = 0
    seeds: Annotated[int, Setting("Runs of each policy.", least=1)] = 1  # how many seeds there are
    changes: Annotated[
        tuple[Change, ...] | None,
        Setting(
            "From then on a worker takes FACTOR times as long as measured; `none` for no change.  "
            "[default: the worker with most samples takes twice as long from the middle on]",
            name="change",
            metavar="ITERATION:WORKER:FACTOR,...",
            read=_read_changes,
        ),
    ] = None
    tolerance: Tolerance = TOLERANCE  # see `PolicyOptions`
    all_reduce: Annotated[
        float,
        Setting(
            "Time of an all-reduce that overlaps with the backward pass, over that of the best split without "
            "it; 0: none.",
            least=0,
            below=inf,
        ),
    ] = 0.0
    links: Annotated[
        tuple[float, ...],
        Setting(
            "Times of transfers with a parameter server, over that of the best split without them, of each "
            "worker in turn; half of each is the push, which overlaps with the backward pass.  "
            "[default: none]",
            metavar="SHARE,...",
            read=_read_links,
        ),
    ] = ()
    micro_batch: Annotated[
        int | None,
        Setting(
            "Samples of a micro-batch, of which workers compute one after the other.  [default: none]",
            least=1,
        ),
    ] = None

    plot: Annotated[
        Path | None,
        Setting("Draw the first seed's iteration times in each cluster, a PNG file.", folder=False),
    ] = None

    def __post_init__(self) -> None:
        check_settings(self)
        if not all(0 < share < inf for share in self.links):
            raise InvalidRequestError(f"links {self.links}: must be shares above 0")
        if self.links and self.all_reduce:
            raise InvalidRequestError(
                f"all_reduce {self.all_reduce} and links {self.links}: gradients meet in one of the two ways"
            )


_DEFAULT_SLOWDOWN = 2.0  # factor on a worker's times from the middle of a run on


def run(config: BalanceConfig, console: Console) -> dict[str, Any]:
    """Play policies against clusters, and print and return the figures.

    They are, with None for what never happens::

        {"options": {"curves": file or "made-up", "noise": share, "seeds": [number],
                     "iterations": count, "all_reduce": share, "links": [share], "buckets": count,
                     "backward": [share], "micro_batch": samples or null},
         "clusters": [{"model": name, "gpus": [worker], "total": samples,
                       "changes": [{"iteration": number, "worker": name, "factor": number}],
                       "policies": {name: {"summary": summary, "runs": [run]}}}]}

        summary: {"ratio": {"mean", "max"}, "noisy_ratio": {"mean", "max"},
                  "batch_size_changes": {"mean", "max"}, "prediction_error": {"mean", "max"},
                  "parts": [{"iterations_to_close": {"median", "max", "never"},
                             "splits_to_near": {"median", "max", "never"}, "ratio": {"mean", "max"}}]}
        run: {"ratio": number, "noisy_ratio": number, "batch_size_changes": count, "prediction_error": share,
              "parts": [{"start": iteration, "best_s": seconds, "iterations_to_close": count,
                         "splits_to_near": count, "ratio": number, "noisy_ratio": number}]}

    `iterations_to_close` counts the iterations before three in a row whose slowest worker takes at most
    1.05 times as long as with the best split, without noise. `splits_to_near` counts the different splits
    before one with which it takes at most 1.03 times as long. `ratio` is the mean iteration time over that
    of the best split, both without noise; `noisy_ratio` is the same of what is measured, with the same
    noise for both. A split that is not the best can have less noise, since fewer of its workers take the
    longest time: that ratio may lie below 1. `prediction_error` is the largest relative error of the times
    that the policy predicts, in the end, for batches of 0.75 to 1.25 times the size with the best split of
    each; `null` for policies that predict none. `never` counts runs; they are left out of the median and of
    the maximum.
    """
    curves = made_up_step_times() if config.curves is None else read_step_times(config.curves)
    clusters = _clusters(curves, config)
    names = config.policies or tuple(POLICIES)
    first: list[dict[str, Play]] = []  # of each cluster, the first seed's plays
    figures: dict[str, Any] = {
        "options": {
            "curves": "made-up" if config.curves is None else config.curves.name,
            "noise": Noise.deviation,
            "seeds": [config.seed + n for n in range(config.seeds)],
            "iterations": config.iterations,
            "all_reduce": config.all_reduce,
            "links": list(config.links),
            "buckets": _BUCKETS,
            "backward": list(_BACKWARD),
            "micro_batch": config.micro_batch,
        },
        "clusters": [],
    }
    with make_progress(console, transient=True) as bar:
        task = bar.add_task("playing", total=len(clusters) * len(names) * config.seeds)
        for cluster in clusters:
            changes = _changes(cluster, config)
            transfers = _transfers(cluster, config)
            found: dict[str, Any] = {}
            first.append({})
            for name in names:
                runs = []
                for seed in figures["options"]["seeds"]:
                    policy = make_policy(name, PolicyOptions(tolerance=config.tolerance))
                    played = play(
                        policy,
                        cluster,
                        changes,
                        Noise(seed=seed),
                        config.iterations,
                        transfers,
                        config.micro_batch,
                    )
                    first[-1].setdefault(name, played)
                    runs.append(played.figures())
                    bar.advance(task)
                found[name] = {"summary": _summary(runs), "runs": runs}
            figures["clusters"].append(
                {
                    "model": cluster.model,
                    "gpus": list(cluster.workers),
                    "total": cluster.total * (config.micro_batch or 1),
                    "changes": [asdict(change) for change in changes],
                    "policies": found,
                }
            )
    for cluster_figures in figures["clusters"]:
        _print(console, cluster_figures)
    console.print(
        f"Close: {CLOSE - 1:.0%} above the best, three times in a row. Near after: splits before one that is "
        f"{NEAR - 1:.0%} above it. Error: the largest, of times for batches of other sizes. "
        f"Seeds: {config.seeds}."
    )
    if config.plot is not None:
        _plot(clusters, first, config.plot)
    return figures


def _clusters(curves: GpuCurves, config: BalanceConfig) -> list[Cluster]:
    clusters = [
        make_cluster(curves, model, config.gpus or tuple(curves[model]), total)
        for model in curves
        if len(curves[model]) > 1
        for total in config.totals or (None,)
    ]
    if config.micro_batch is None:
        return clusters
    return [in_micro_batches(cluster, config.micro_batch) for cluster in clusters]


def _changes(cluster: Cluster, config: BalanceConfig) -> tuple[Change, ...]:
    if config.changes is not None:
        return config.changes
    best, _ = _best(cluster)
    return (Change(config.iterations // 2, list(cluster.workers)[int(best.argmax())], _DEFAULT_SLOWDOWN),)


def _transfers(cluster: Cluster, config: BalanceConfig) -> Transfers | None:
    _, seconds = _best(cluster)
    backward = _in_turn(_BACKWARD, len(cluster.workers))
    if config.links:
        links = _in_turn([share * seconds for share in config.links], len(cluster.workers))
        return ServerLinks(links, _BUCKETS, backward)
    if not config.all_reduce:
        return None
    return AllReduce(config.all_reduce * seconds, _BUCKETS, backward)


def _in_turn(values: Sequence[float], workers: int) -> tuple[float, ...]:
    return tuple(itertools.islice(itertools.cycle(values), workers))


def _best(cluster: Cluster) -> tuple[NDArray[np.int64], float]:
    """Return the best split, (workers,), and the seconds that its slowest worker computes for."""
    tables = [times.table() for times in cluster.workers.values()]
    minima = [times.bounds.minimum for times in cluster.workers.values()]
    best = best_split(tables, minima, cluster.total)
    return best, max(table[n - low] for table, n, low in zip(tables, best, minima, strict=True))


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts = [
        {
            "iterations_to_close": _reached([part["iterations_to_close"] for part in same]),
            "splits_to_near": _reached([part["splits_to_near"] for part in same]),
            "ratio": _mean_and_max([part["ratio"] for part in same]),
        }
        for same in zip(*(its["parts"] for its in runs), strict=True)
    ]
    names = ("ratio", "noisy_ratio", "batch_size_changes", "prediction_error")
    return {**{name: _mean_and_max([its[name] for its in runs]) for name in names}, "parts": parts}


def _reached(counts: Sequence[int | None]) -> dict[str, Any]:
    reached = [count for count in counts if count is not None]
    return {
        "median": statistics.median(reached) if reached else None,
        "max": max(reached, default=None),
        "never": len(counts) - len(reached),
    }


def _mean_and_max(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"mean": statistics.fmean(known), "max": max(known)} if known else None


# -- showing


def _print(console: Console, figures: Mapping[str, Any]) -> None:
    changes = ", ".join(f"{c['worker']} x{c['factor']:g} at {c['iteration']}" for c in figures["changes"])
    parts = len(next(iter(figures["policies"].values()))["summary"]["parts"])
    table = make_table(
        f"{figures['model']}, {figures['total']} samples: {', '.join(figures['gpus'])}"
        + (f"; {changes}" if changes else ""),
        *("policy", "iterations to close"),
        *(f"after change {n}" if parts > 2 else "after the change" for n in range(1, parts)),
        *("near after", "time / best", "with noise", "changes of sizes", "error"),
        no_wrap=True,
    )
    for name, its in figures["policies"].items():
        summary = its["summary"]
        table.add_row(
            name,
            *(_in_words(part["iterations_to_close"]) for part in summary["parts"]),
            _in_words(summary["parts"][0]["splits_to_near"]),
            f"{summary['ratio']['mean']:.3f}",
            f"{summary['noisy_ratio']['mean']:.3f}",
            f"{summary['batch_size_changes']['mean']:.0f}",
            f"{summary['prediction_error']['max']:.1%}" if summary["prediction_error"] else "",
        )
    console.print(table)


def _in_words(counts: Mapping[str, Any]) -> str:
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
