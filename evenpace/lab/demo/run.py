"""The demo: the same training on the same uneven workers, split evenly, then balanced."""

import os
import statistics
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn

from evenpace.cpu_limits import LimitKind, limit_cpu
from evenpace.dashboard.config import check_http
from evenpace.dashboard.listening import address_of, listen
from evenpace.lab import data as data_sets
from evenpace.lab.cluster import LocalCluster, pick_cpus
from evenpace.lab.data import ImageSet
from evenpace.lab.demo.model import make_model
from evenpace.lab.experiments import analysis
from evenpace.launch import parse_shares
from evenpace.observer import Observer
from evenpace.reports import demo, files
from idl.errors import InvalidRequestError
from idl.measures import waiting_share
from rpc.address import Address

_POLL_SECONDS = 0.25
_SNAPSHOTS = 20  # of the parameters in each run, about; for the curves of loss and accuracy
_RECENT = 10  # iterations that the live table is over
_EVALUATED_AT_ONCE = 256  # test images; all of them at once would take gigabytes
_SCRIPT = Path(__file__).with_name("train.py")

_ITERATIONS = 84  # about so many, unless epochs are given
_TOTAL_BATCH_SIZES = {"digits": 720}  # by data set; others have the next
_TOTAL_BATCH_SIZE = 512


@dataclass(frozen=True)
class DemoConfig:
    """What the demo trains, and on what.

    Attributes:
        shares: Cores that each worker may use.
        data: As `evenpace.lab.data.load` takes it.
        epochs: Passes over the data; None for about 84 iterations.
        total_batch_size: Samples of a batch, over all workers.
        policy: Of the balanced run.
        predictor: Of the balanced run.
        tolerance: Of the balanced run.
        shards: Processes of the parameter server.
        seed: Of the model's first parameters and of the samples' order.
        limit_kind: See `evenpace.cpu_limits.limit_cpu`.
        out: Folder for the report and the logs.
        http: Where the live page is, on loopback; None for no page.
    """

    shares: tuple[float, ...]
    data: str
    epochs: int | None
    total_batch_size: int
    policy: str
    predictor: str
    tolerance: float
    shards: int
    seed: int
    limit_kind: LimitKind
    out: Path
    http: Address | None = None

    @classmethod
    def from_options(
        cls, shares: str, data: str, epochs: int | None, total_batch_size: int | None, **rest: Any
    ) -> "DemoConfig":
        """Read the command line's values.

        Raises:
            InvalidRequestError: A value is not allowed.
        """
        batch_size = total_batch_size or _TOTAL_BATCH_SIZES.get(data.partition(":")[0], _TOTAL_BATCH_SIZE)
        return cls(parse_shares(shares), data, epochs, batch_size, **rest)

    @property
    def ideal_speedup(self) -> float:
        """What the shares alone allow: the even split goes at the pace of the slowest worker."""
        return sum(self.shares) / (len(self.shares) * min(self.shares))

    @property
    def workers(self) -> dict[str, float]:
        """Each worker's name and share."""
        return {f"worker-{i}": share for i, share in enumerate(self.shares)}


def run_demo(config: DemoConfig, json_path: Path | None = None) -> dict[str, Any]:
    """Run both trainings, show them live, and write the report.

    Args:
        config: What to run.
        json_path: Where the summary goes, too.

    Returns:
        The summary.

    Raises:
        EvenpaceError: A process failed; the message has the end of its log.
        ValueError: The data cannot be read, or do not fit the options.
    """
    console = Console()
    if config.http is not None:
        # Each run has a manager, and so a page, of its own; a browser that stays open follows both.
        config = replace(config, http=_page_address(config.http))
        console.print(f"Live page, while the demo runs: http://{config.http}/", soft_wrap=True)
    os.nice(10)  # watching must not slow down what is watched
    data = data_sets.load(config.data)
    if config.total_batch_size > len(data.train_images):
        raise InvalidRequestError(
            f"batch size {config.total_batch_size}: {data.name} has {len(data.train_images)} training images"
        )
    per_epoch = -(-len(data.train_images) // config.total_batch_size)
    epochs = config.epochs or max(1, _ITERATIONS // per_epoch)
    kind, kind_name = _choose_limit(config.limit_kind)
    console.print(
        f"{len(config.shares)} workers, limited to {', '.join(f'{s:g}' for s in config.shares)} of a core by "
        f"{kind_name}; {data.name}, batches of {config.total_batch_size}, {epochs} epochs"
    )
    runs, parameters = {}, {}
    for name, policy in (("even", "even"), ("balanced", config.policy)):
        run = _Run(config, data, epochs, name, policy, kind, console)
        runs[name], parameters[name] = run.measure()
    difference = float(np.abs(parameters["even"] - parameters["balanced"]).max())
    speedup = runs["even"]["iteration_s_median"] / runs["balanced"]["iteration_s_median"]
    full: dict[str, Any] = {
        "shares": config.workers,
        "iterations": len(runs["even"]["iterations"]),
        "total_batch_size": config.total_batch_size,
        "data": data.name,
        "limit_kind": kind_name,
        "seed": config.seed,
        "speedup": speedup,
        "ideal_speedup": config.ideal_speedup,
        "parameters_max_abs_diff": difference,
        "runs": runs,
    }
    files.write_json(full, config.out / "report.json")
    demo.write_html(full, config.out / "report.html")
    summary = _summary(full)
    if json_path is not None:
        files.write_json(summary, json_path)
    _print_summary(console, full, config.out)
    return summary


def _page_address(http: Address) -> Address:
    """Where the page will be: with a port in the place of 0.

    Raises:
        InvalidRequestError: Others could reach it there.
        AddressInUseError, ConnectionLostError: It cannot be there.
    """
    check_http(http, None, insecure=False)
    with listen(http) as listener:
        return address_of(listener)


class _Run:
    """One of the two trainings."""

    def __init__(
        self,
        config: DemoConfig,
        data: ImageSet,
        epochs: int,
        name: str,
        policy: str,
        kind: LimitKind,
        console: Console,
    ) -> None:
        self._config = config
        self._data = data
        self._epochs = epochs
        self._name = name
        self._policy = policy
        self._kind = kind
        self._console = console
        self._model = make_model(data)
        self._parameters = nn.utils.parameters_to_vector(self._model.parameters()).detach().numpy()
        # seconds since the run's start, steps taken, and a copy of the parameters then
        self._snapshots: list[tuple[float, int, NDArray[Any]]] = []
        per_epoch = -(-len(data.train_images) // config.total_batch_size)
        self._iterations = per_epoch * epochs

    def measure(self) -> tuple[dict[str, Any], NDArray[Any]]:
        """Train; what was measured, and the final parameters, (elements,)."""
        config = self._config
        cluster = LocalCluster(
            config.out / self._name,
            policy=self._policy,
            predictor=config.predictor,
            tolerance=config.tolerance,
            workers=len(config.shares),
            shards=config.shards,
            manager_options=() if config.http is None else ("--http", str(config.http)),
        )
        arguments = [
            *("--data", config.data, "--epochs", str(self._epochs)),
            *("--batch-size", str(config.total_batch_size), "--seed", str(config.seed)),
        ]
        with cluster:
            observer = Observer(cluster.manager, cluster.shard_addresses)
            cpus = pick_cpus(config.shares)
            for (name, share), cpu in zip(config.workers.items(), cpus, strict=True):
                cluster.start_worker(
                    name,
                    _SCRIPT,
                    arguments,
                    cpu_share=share,
                    limit_kind=self._kind,
                    options={"--cpu": str(cpu)},
                )
            began = self._watch(cluster, observer)
            wall = time.monotonic() - began
            observer.poll()
            observer.pull(self._parameters, version=self._iterations)
            self._keep(wall, self._iterations)
            observer.close()
        return self._result(observer, wall), self._parameters

    def _watch(self, cluster: LocalCluster, observer: Observer) -> float:
        """Show the run until the workers have ended; returns when it began."""
        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        task = bar.add_task(f"{self._name}: starting", total=self._iterations)
        began, kept = 0.0, 0
        with Live(bar, console=self._console, refresh_per_second=4) as live:
            while cluster.check():
                time.sleep(_POLL_SECONDS)
                if not observer.poll() or not observer.iterations:
                    continue
                now = time.monotonic()
                if not began:
                    began = now - sum(record.duration for record in observer.iterations)
                done = len(observer.iterations)
                bar.update(task, completed=done, description=f"{self._name} ({self._policy})")
                live.update(Group(bar, self._table(observer)))
                if kept + self._iterations / _SNAPSHOTS <= done < self._iterations:
                    kept = observer.pull(self._parameters)
                    self._keep(now - began, kept)
        if not self._console.is_terminal:
            self._console.line()  # there, rich leaves the last one open
        return began or time.monotonic()

    def _table(self, observer: Observer) -> Table:
        table = Table(box=None, pad_edge=False)
        for column in ("worker", "share", "batch size", "iteration ms", "waiting", "samples/s"):
            table.add_column(column, justify="left" if column == "worker" else "right")
        recent = observer.iterations[-_RECENT:]
        latest = recent[-1].parts
        for worker, share in self._config.workers.items():
            parts = [record.parts[worker] for record in recent if worker in record.workers]
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

    def _keep(self, seconds: float, iteration: int) -> None:
        """Keep the parameters pulled last; to evaluate them now would take CPU time from the workers."""
        self._snapshots.append((seconds, iteration, self._parameters.copy()))

    @torch.no_grad()
    def _evaluate(self, seconds: float, iteration: int, parameters: NDArray[Any]) -> dict[str, float]:
        """Loss and accuracy on the test set."""
        nn.utils.vector_to_parameters(torch.from_numpy(parameters), self._model.parameters())
        images = torch.from_numpy(self._data.test_images)
        outputs = torch.cat([self._model(part) for part in torch.split(images, _EVALUATED_AT_ONCE)])
        labels = torch.from_numpy(self._data.test_labels)
        return {
            "time_s": seconds,
            "iteration": iteration,
            "loss": nn.functional.cross_entropy(outputs, labels).item(),
            "accuracy": (outputs.argmax(1) == labels).float().mean().item(),
        }

    def _result(self, observer: Observer, wall: float) -> dict[str, Any]:
        records = [record.plain() for record in observer.iterations]
        whole = [r for r in records if r["total"] == self._config.total_batch_size]
        progress = [self._evaluate(*snapshot) for snapshot in self._snapshots]
        return {
            "policy": self._policy,
            "iteration_s_median": statistics.median(r["duration"] for r in records),
            "waiting_share": analysis.waiting_share(records),
            "accuracy": progress[-1]["accuracy"],
            "wall_s": wall,
            "batch_sizes": {
                name: part["batch_size"] for name, part in (whole or records)[-1]["workers"].items()
            },
            "iterations": records,
            "progress": progress,
        }


def _choose_limit(wanted: LimitKind) -> tuple[LimitKind, str]:
    """Try out which kind of limit works here; for `limit_cpu`, and in words."""
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL) as child:
        try:
            with limit_cpu(child.pid, 0.5, "probe", wanted) as limit:
                name = limit.kind
        finally:
            child.kill()
    return ("cgroup" if name.startswith("cgroup") else "duty-cycle"), name


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
    table = Table(title="Even against balanced", title_justify="left")
    for column in ("run", "iteration ms", "waiting", "accuracy", "batch sizes"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for name, run in full["runs"].items():
        table.add_row(
            name,
            f"{run['iteration_s_median'] * 1e3:.0f}",
            f"{run['waiting_share']:.0%}",
            f"{run['accuracy']:.1%}",
            " ".join(str(size) for size in run["batch_sizes"].values()),
        )
    console.print(table)
    console.print(
        f"Balanced is {full['speedup']:.2f} times as fast as even (the shares allow "
        f"{full['ideal_speedup']:.2f}); the final parameters differ by "
        f"{full['parameters_max_abs_diff']:.1e} at most."
    )
    console.print(f"Report: {out / 'report.html'}, {out / 'report.json'}", soft_wrap=True)
