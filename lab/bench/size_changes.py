"""Measure what a change of the batch size costs a job.

Iterations with a change are compared with others without, all of them first of their epochs; the floor
compares two groups without. With a lookahead, those in which such plans are made are compared, too. A
manager, a shard and workers are real processes; the figures come from the manager's records.

Example:
  evenpace lab bench sizes --repeats 5 --json sizes.json
"""

import contextlib
import itertools
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from rich.progress import track

from evenpace.local.cluster import LOOPBACK, LocalCluster, free_ports
from evenpace.local.terminal import make_table
from idl.errors import UnavailableError
from idl.records import IterationRecord
from idl.settings import Setting, check_settings
from lab.fields import Repeats
from lab.observer import Observer
from lab.script_options import as_argument


@dataclass(frozen=True)
class SizesConfig:
    """The job and its epochs (ValueError: a value is not allowed)."""

    workers: Annotated[int, Setting("Of the job.", least=1, most=32)] = 2
    epochs: Annotated[int, Setting("The size changes before every second; a multiple of 4.", least=16)] = 200
    repeats: Repeats = 5  # trainings of each kind

    def __post_init__(self) -> None:
        check_settings(self)
        if self.epochs % 4:
            raise ValueError(f"epochs {self.epochs}: must be a multiple of 4")


_SCRIPT = Path(__file__).with_name("size_changes_worker.py")
_SIZES = (64, 66)  # samples of the whole batch, so near each other that their iterations take as long
_BATCHES = 4  # of an epoch, all of them whole
_LOOKAHEAD = 2  # of the trainings with one
_WARM_UP = 8  # first epochs that do not count, a multiple of 4
_POLL_SECONDS = 1.0  # seconds between two looks at the job, which disturb it
_PLANS = 'evenpace_policy_seconds_count{step="split"}'

PLAIN, AHEAD, STATE = "no lookahead", "lookahead", "state"
"""The ways to run a manager."""


def run(config: SizesConfig, console: Console) -> dict[str, Any]:
    """Train in each way in turn, and print and return durations of iterations with and without a change."""
    rounds: dict[str, list[dict[str, Any]]] = {PLAIN: [], AHEAD: [], STATE: []}
    turns = [way for _ in range(config.repeats) for way in rounds]
    for way in track(turns, description="trainings", console=console):
        rounds[way].append(_round(config, way))
    figures = asdict(config) | {
        "ways": {way: _summary(its) for way, its in rounds.items()},
    }
    _show(console, figures)
    return figures


def _round(config: SizesConfig, way: str) -> dict[str, Any]:
    """Train once, and return the durations of groups of iterations, in seconds."""
    lookahead = _LOOKAHEAD if way == AHEAD else 0
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="evenpace-sizes-") as folder:
        options = as_argument(sizes=_SIZES, batches=_BATCHES, epochs=config.epochs)
        with LocalCluster(
            Path(folder),
            workers=config.workers,
            metrics=f"{LOOPBACK}:{port}",
            lookahead=lookahead,
            state=Path(folder) / "state" if way == STATE else None,
        ) as cluster:
            for number in range(config.workers):
                cluster.start_worker(f"w{number}", _SCRIPT, [options])
            with contextlib.closing(Observer(cluster.manager, ())) as observer:
                while cluster.check():
                    time.sleep(_POLL_SECONDS)
                    observer.poll()
                observer.poll()
                records = observer.iterations
            plans = _plans(port)
    due = config.epochs * _BATCHES
    if [record.iteration for record in records] != list(range(due)):
        raise UnavailableError(f"{len(records)} records, where {due} were due")
    return {
        "changes": sum(one.total != other.total for one, other in itertools.pairwise(records)),
        "attempts": max(record.attempt for record in records),
        "plans_beyond": plans - due,
        "computed": _groups(records, config, 0),
        "planned": _groups(records, config, lookahead),
    }


def _groups(records: Sequence[IterationRecord], config: SizesConfig, ahead: int) -> dict[str, list[float]]:
    """Return the seconds of iterations, by group, `ahead` before the first ones of epochs.

    A plan is made when the iteration before those that are planned ahead is complete. `same` and `again` are
    the halves of the epochs that begin without a change; both have both sizes alike, as `changed` has.
    """
    groups: dict[str, list[float]] = {"changed": [], "same": [], "again": []}
    for epoch in range(_WARM_UP, config.epochs):
        first = records[epoch * _BATCHES]
        is_changed = first.total != records[first.iteration - 1].total
        name = "changed" if is_changed else ("same", "again")[epoch // 4 % 2]
        groups[name].append(records[first.iteration - ahead].duration)
    return groups


def _plans(port: int) -> int:
    """Return the number of plans that the manager has made, from its metrics."""
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    for line in lines:
        if line.startswith(_PLANS):
            return int(float(line.split()[-1]))
    raise UnavailableError(f"the manager has no metric {_PLANS}")


def _summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put rounds together: quartiles over all, and ratios of medians within each, where little drifts."""
    return {
        "changes": sum(its["changes"] for its in rounds),
        "attempts": max(its["attempts"] for its in rounds),
        "plans_beyond": max(its["plans_beyond"] for its in rounds),
        **{when: _compared([its[when] for its in rounds]) for when in ("computed", "planned")},
    }


def _compared(rounds: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """Compare iterations with a change and without, and as the floor two groups without."""

    def quartiles(values: Iterable[float]) -> list[float]:
        return [float(value) for value in np.percentile(list(values), (25, 50, 75))]

    without = [[*its["same"], *its["again"]] for its in rounds]
    medians = [(median(its["changed"]), median(other)) for its, other in zip(rounds, without, strict=True)]
    costs = [changed - other for changed, other in medians]
    ratios = [changed / other for changed, other in medians]
    floors = [median(its["again"]) / median(its["same"]) for its in rounds]
    return {
        "changed_s": quartiles(itertools.chain.from_iterable(its["changed"] for its in rounds)),
        "without_s": quartiles(itertools.chain.from_iterable(without)),
        "cost_s": median(costs),
        "costs_s": costs,
        "ratio": median(ratios),
        "ratios": ratios,
        "floor": median(floors),
        "floors": floors,
    }


def _show(console: Console, figures: Mapping[str, Any]) -> None:
    title = (
        f"First iterations of epochs, ms (quartiles), and ratios of medians (of {figures['repeats']} "
        f"trainings); {figures['workers']} workers"
    )
    columns = ("with a change", "without", "cost", "ratio", "floor", "changes", "attempts", "plans beyond")
    table = make_table(title, "", *columns)
    for way, its in figures["ways"].items():
        counts = [f"{its[key]:,}" for key in ("changes", "attempts", "plans_beyond")]
        for when in ("computed", "planned") if way == AHEAD else ("computed",):
            one = its[when]
            name = f"{way} {_LOOKAHEAD}, when {when}" if way == AHEAD else way
            table.add_row(
                name,
                *(_in_ms(one[key]) for key in ("changed_s", "without_s")),
                _with_range(one["cost_s"] * 1e3, [cost * 1e3 for cost in one["costs_s"]], 2),
                *(_with_range(one[key], one[f"{key}s"]) for key in ("ratio", "floor")),
                *counts,
            )
    console.print(table)


def _in_ms(quartiles: Sequence[float]) -> str:
    low, middle, high = (value * 1e3 for value in quartiles)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _with_range(middle: float, values: Sequence[float], digits: int = 3) -> str:
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
