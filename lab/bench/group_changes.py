"""Measure what workers that join, are drained and are killed cost others with all-reduce, and no change.

A manager and workers are real processes. A worker that stays says when its iterations ended: across a change,
the time beyond an iteration is the change's cost, with that of an iteration that a death undoes. Without
changes, the job and stock DDP with a static group, both ready all the while, take turns of some iterations:
what drifts on the machine meets both.

Example:
  evenpace lab bench groups --workers 4 --parameters 1000000 --json groups.json
"""

import contextlib
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from batchsize_manager.client import ManagerClient
from evenpace.local.cluster import LocalCluster
from evenpace.local.terminal import make_progress, make_table
from idl.errors import InvalidRequestError
from idl.settings import Setting, check_settings
from lab.bench import group_changes_worker as script
from lab.fields import Repeats, parse_names, whole_numbers
from lab.new_lines import NewLines
from lab.script_options import as_argument
from lab.waiting import wait_until

GROUP_CHANGES = ("join", "drain", "kill", "kill-while-forming")
"""Changes to a group of workers, from its own joining to deaths of members."""


@dataclass(frozen=True)
class GroupChangesConfig:
    """The job, its model and its changes."""

    workers: Annotated[int, Setting("Of the job.", least=2, most=16)] = 3
    parameters: Annotated[
        tuple[int, ...],
        Setting(
            "Elements of the model, in float32; several are measured one after the other.",
            metavar="COUNT,...",
            read=partial(whole_numbers, "parameters", least=8),
        ),
    ] = (10_000_000,)
    turns: Annotated[int, Setting("Turns of 10 iterations beside those of stock DDP; 0: none.", least=0)] = 10
    # By their names in `GROUP_CHANGES`, in this order.
    changes: Annotated[
        tuple[str, ...],
        Setting(
            f"Those that are measured, of {', '.join(GROUP_CHANGES)}.",
            metavar="CHANGE,...",
            read=parse_names,
        ),
    ] = GROUP_CHANGES
    repeats: Repeats = 3

    def __post_init__(self) -> None:
        check_settings(self)
        if unknown := sorted(set(self.changes) - set(GROUP_CHANGES)):
            raise InvalidRequestError(f"changes {', '.join(unknown)}: there are {', '.join(GROUP_CHANGES)}")
        if _BATCH_SIZE % self.workers:
            raise InvalidRequestError(
                f"workers {self.workers}: must divide the batch, of {_BATCH_SIZE} samples, evenly"
            )


_BATCH_SIZE = 48  # samples
_LOOK_SECONDS = 0.1  # seconds between two looks at the job, which disturb it
_FORMING_LOOK_SECONDS = 0.005  # the same, for the moment at which a group begins to be formed
_JOB = "default"
_CALM = 12  # iterations between two changes
_SETTLED = 2  # iterations after a change that are not taken for ordinary ones

PARTS = ("meet", "connect", "state", "compare")
"""The parts of a change, as `GroupTimes` has them."""


@dataclass(frozen=True)
class _Line:
    """An iteration of a worker."""

    iteration: int  # its number
    attempt: int  # the job's attempt
    ended: float  # when it ended, in seconds by the monotonic clock
    cpu: float  # seconds of CPU that the worker has had by then
    times: dict[str, float]  # seconds of the parts of the change to the worker's group, by name


class _Job:
    """Workers that train a model of some size, each with a file of its iterations."""

    def __init__(
        self, config: GroupChangesConfig, parameters: int, folder: Path, cluster: LocalCluster
    ) -> None:
        self._options = {"parameters": parameters, "batch_size": _BATCH_SIZE}
        self._ranks = config.workers
        self._folder = folder
        self._cluster = cluster
        self._killed: set[str] = set()
        self._new = NewLines()
        # By worker, as far as its file was read.
        self._lines: defaultdict[str, list[_Line]] = defaultdict(list)

    def kill(self, name: str) -> None:
        self._killed.add(name)
        os.kill(self._cluster.pid(name), signal.SIGKILL)

    def start(self, name: str, turns: Path | None = None) -> None:
        """Start a worker of the job, which waits for files of `turns` and a number, if given."""
        self._cluster.start_worker(name, script.__file__, [self._argument(name, turns=turns)])

    def start_stock(self, rank: int, turns: Path) -> None:
        """Start a rank of stock DDP."""
        place = {"store": self._folder / "store", "rank": rank, "ranks": self._ranks, "parent": os.getpid()}
        argument = self._argument(name := f"stock{rank}", turns=turns, **place)
        self._cluster.start_other(name, [sys.executable, "-m", script.__name__, argument])

    def lines(self, name: str) -> list[_Line]:
        """Return the iterations that a worker has ended so far."""
        file = self._folder / f"{name}.jsonl"
        if file.exists():
            self._lines[name] += [_Line(**json.loads(line)) for line in self._new.of(file)]
        return self._lines[name]

    def has_ended(self, name: str, iterations: int) -> bool:
        return len(self.lines(name)) >= iterations

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds (ProcessFailedError: a process failed that was not killed)."""
        wait_until(what, condition, partial(self._cluster.check, self._killed), tick=_LOOK_SECONDS)

    def _argument(self, name: str, **options: Any) -> str:
        given = {key: value for key, value in options.items() if value is not None}
        return as_argument(**self._options, out=self._folder / f"{name}.jsonl", **given)


@contextlib.contextmanager
def _job(config: GroupChangesConfig, parameters: int) -> Iterator[tuple[_Job, LocalCluster, Path]]:
    with tempfile.TemporaryDirectory(prefix="evenpace-groups-") as name:
        folder = Path(name)
        with LocalCluster(folder / "logs", workers=config.workers, shards=0, policy="even") as cluster:
            yield _Job(config, parameters, folder, cluster), cluster, folder


def run(config: GroupChangesConfig, console: Console) -> dict[str, Any]:
    """Measure by model size what workers that come and go cost the others, and that they could."""
    sizes = []
    with make_progress(console, transient=True) as progress:
        for parameters in config.parameters:
            model = [parameter.numel() for parameter in script.make_model(parameters).parameters()]
            measured = {"parameters": sum(model), "tensors": len(model)}
            changes = _changes(config, parameters, progress)
            unchanged = _unchanged(config, parameters, progress) if config.turns else None
            sizes.append(measured | {"changes": changes, "unchanged": unchanged})
    figures = asdict(config) | {"sizes": sizes}
    _show(console, figures)
    return figures


def _changes(config: GroupChangesConfig, parameters: int, progress: Progress) -> dict[str, Any]:
    """Change the workers in each way, in turn, and return what that cost the worker that stays."""
    costs: dict[str, list[dict[str, Any]]] = {change: [] for change in config.changes}
    bar = progress.add_task(f"changes, {parameters:,} parameters", total=len(costs) * config.repeats)
    with (
        _job(config, parameters) as (job, cluster, _),
        contextlib.closing(ManagerClient(cluster.manager)) as client,
    ):
        fresh = (f"w{number}" for number in itertools.count())
        stays, *others = itertools.islice(fresh, config.workers)
        for name in (stays, *others):
            job.start(name)
        job.until("the first iterations", partial(job.has_ended, stays, _CALM))

        def join() -> None:
            others.append(next(fresh))
            job.start(others[-1])

        def drain() -> None:
            client.drain(_JOB, others.pop(0))

        def kill() -> None:
            job.kill(others.pop(0))

        def kill_while_forming() -> None:
            before = client.status(_JOB).summary.attempt
            drain()
            summary = client.status(_JOB).summary
            while summary.attempt == before or summary.group_size is None:  # the members are not decided on
                time.sleep(_FORMING_LOOK_SECONDS)
                summary = client.status(_JOB).summary
            kill()

        acts = (join, 0), (drain, 1), (kill, 1), (kill_while_forming, 2)  # each with how many leave by it
        ways = dict(zip(GROUP_CHANGES, acts, strict=True))
        for _ in range(config.repeats):
            for change, its in costs.items():
                act, leaving = ways[change]
                while len(others) + 1 < config.workers + leaving:
                    _cost(job, stays, join)
                its.append(_cost(job, stays, act))
                progress.advance(bar)
    return {change: _summary(its) for change, its in costs.items()}


def _cost(job: _Job, stays: str, change: Callable[[], object]) -> dict[str, Any]:
    """Cause a change, wait until the job has gone on, and return what it cost a worker that stays."""
    old = job.lines(stays)[-1].attempt
    change()

    def has_gone_on() -> bool:
        last = job.lines(stays)[-1].attempt
        return last > old and sum(line.attempt == last for line in job.lines(stays)) >= _CALM

    job.until("the change", has_gone_on)
    lines = job.lines(stays)
    last = [line for line in lines if line.attempt == old][-1]
    new = [line for line in lines if line.attempt == lines[-1].attempt]
    gaps = np.diff([line.ended for line in new])
    ordinary = float(np.median(gaps[_SETTLED - 1 :]))
    return {
        "cost_s": new[0].ended - last.ended - (new[0].iteration - last.iteration) * ordinary,
        "next_s": float(gaps[0]) - ordinary,
        "iteration_s": ordinary,
        "attempts": new[0].attempt - old,
        "parts": new[0].times,
    }


def _unchanged(config: GroupChangesConfig, parameters: int, progress: Progress) -> dict[str, Any]:
    """Have the job and stock DDP train in turns, and compare their iterations."""
    seconds: dict[str, list[float]] = {"stock": [], "job": []}
    cpu: dict[str, list[float]] = {"stock": [], "job": []}
    observed = {"stock": "stock0", "job": "w0"}
    bar = progress.add_task(f"no change, {parameters:,} parameters", total=2 * (config.turns + 1))
    with _job(config, parameters) as (job, _, folder):
        for rank in range(config.workers):
            job.start_stock(rank, folder / "stock")
            job.start(f"w{rank}", folder / "job")
        for turn in range(config.turns + 1):
            for way, name in observed.items():
                (folder / f"{way}-{turn}").touch()
                due = (turn + 1) * script.BLOCK
                job.until(f"iteration {due} of {name}", partial(job.has_ended, name, due))
                first, last = (job.lines(name)[number] for number in (turn * script.BLOCK, due - 1))
                seconds[way].append((last.ended - first.ended) / (script.BLOCK - 1))
                cpu[way].append((last.cpu - first.cpu) / (script.BLOCK - 1))
                progress.advance(bar)
    stock, own = (seconds[way][1:] for way in observed)  # the first turn is the warm-up
    ratios = [formed / plain for formed, plain in zip(own, stock, strict=True)]
    floors = [again / plain for plain, again in itertools.pairwise(stock)]
    return {
        "stock_s": statistics.median(stock),
        "job_s": statistics.median(own),
        "cost_s": statistics.median(formed - plain for formed, plain in zip(own, stock, strict=True)),
        **{f"{way}_cpu_s": statistics.median(values[1:]) for way, values in cpu.items()},
        "ratio": _quartiles(ratios),
        "floor": _quartiles(floors) if floors else None,
    }


def _summary(costs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    values = [cost["cost_s"] for cost in costs]
    return {
        "cost_s": statistics.median(values),
        "costs_s": values,
        **{key: statistics.median(cost[key] for cost in costs) for key in ("next_s", "iteration_s")},
        "attempts": max(cost["attempts"] for cost in costs),
        "parts_s": {part: statistics.median(cost["parts"][part] for cost in costs) for part in PARTS},
    }


def _quartiles(values: Sequence[float]) -> list[float]:
    return [float(value) for value in np.percentile(values, (25, 50, 75))]


def _show(console: Console, figures: dict[str, Any]) -> None:
    title = (
        f"{figures['repeats']} changes of each kind to {figures['workers']} workers; ms beyond an iteration "
        f"for a worker that stays (range), and parts"
    )
    table = make_table(title, "", "parameters", "cost", *PARTS, "next", "iteration")
    for size in figures["sizes"]:
        for change, its in size["changes"].items():
            values = (
                its["cost_s"],
                *its["parts_s"].values(),
                its["next_s"],
                its["iteration_s"],
            )
            middle, *rest = (f"{value * 1e3:.0f}" for value in values)
            spread = f"{min(its['costs_s']) * 1e3:.0f}-{max(its['costs_s']) * 1e3:.0f}"
            table.add_row(change, f"{size['parameters']:,}", f"{middle} ({spread})", *rest)
    console.print(table)
    if figures["turns"]:
        _show_unchanged(console, figures)


def _show_unchanged(console: Console, figures: dict[str, Any]) -> None:
    turns = f"{figures['turns']} turns of {script.BLOCK - 1} iterations"
    title = f"Without a change, {turns}; ratios with quartiles"
    table = make_table(
        title, "parameters", "stock DDP ms", "job ms", "cost ms", "CPU ms", "ratio", "stock to stock"
    )
    for size in figures["sizes"]:
        its = size["unchanged"]
        times = [f"{its[key] * 1e3:.1f}" for key in ("stock_s", "job_s", "cost_s")]
        times.append(" to ".join(f"{its[f'{way}_cpu_s'] * 1e3:.1f}" for way in ("stock", "job")))
        table.add_row(f"{size['parameters']:,}", *times, *(_ratio(its[key]) for key in ("ratio", "floor")))
    console.print(table)


def _ratio(quartiles: Sequence[float] | None) -> str:
    if quartiles is None:
        return "-"
    low, middle, high = quartiles
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"
