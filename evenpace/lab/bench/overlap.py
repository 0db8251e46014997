"""Transfers to a parameter server that are hidden behind computing, over links of limited bandwidth.

Workers' layers compute for a time that is given, so that this machine's processors are not what limits them.
Shards run in network namespaces whose bandwidth the kernel bounds.
"""

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from evenpace.lab import terminal
from evenpace.lab.bench.config import OverlapConfig
from evenpace.lab.cluster import service
from evenpace.lab.network import WorkerNetwork
from idl.errors import EvenpaceError

_ITERATIONS = 24  # timed at once, of which the last half counts
_WAYS = {
    "by the step": ["--bucket-mb", "0"],
    "while computing": ["--bucket-mb", "1"],
    "while computing, pulled ahead": ["--bucket-mb", "1", "--pull-ahead"],
}


def run(config: OverlapConfig, json_path: Path | None) -> dict[str, Any]:
    """Measure, print the figures, and write them.

    Each way's transfers are timed without computing, and then with as much computing as they take; the ways
    take turns.

    Raises:
        NetworkError: Links of limited bandwidth cannot be made here.
        EvenpaceError: A worker failed.
    """
    console = Console()
    before = os.getloadavg()[0]
    transfers: list[float] = []
    taken: dict[str, list[float]] = {way: [] for way in _WAYS}
    with _shards(config) as shards:
        for _ in track(range(config.repeats), description=f"{config.layers} layers", console=console):
            for way, options in _WAYS.items():
                with _job(config, shards, options) as workers:
                    transfer = _timed(workers, 0.0)
                    transfers.append(transfer)
                    compute = config.compute or statistics.median(transfers)
                    taken[way].append(_timed(workers, compute))
    transfer = statistics.median(transfers)
    compute = config.compute or transfer
    figures: dict[str, Any] = asdict(config) | {
        "load_average": [before, os.getloadavg()[0]],
        "transfer_s": transfer,
        "compute_s": compute,
        "iteration_s": {way: statistics.median(times) for way, times in taken.items()},
        "iterations_s": taken,
    }
    _show(console, config, figures)
    terminal.give(figures, json_path, console)
    return figures


def _show(console: Console, config: OverlapConfig, figures: dict[str, Any]) -> None:
    compute, transfer = figures["compute_s"], figures["transfer_s"]
    title = (
        f"{config.workers} workers, {config.shards} shards behind {config.rate:g} MB/s each, computing "
        f"{1000 * compute:.0f} ms, transfers {1000 * transfer:.0f} ms; medians of {config.repeats}"
    )
    table = Table(title=title, title_justify="left")
    for column in ("pushed", "iteration ms", "to the longer one", "to the sum"):
        table.add_column(column, justify="right" if column != "pushed" else "left")
    for way, seconds in figures["iteration_s"].items():
        table.add_row(
            way,
            f"{1000 * seconds:.0f}",
            f"{seconds / max(compute, transfer):.2f}",
            f"{seconds / (compute + transfer):.2f}",
        )
    console.print(table)
    console.print(terminal.load_line(*figures["load_average"]))


@contextlib.contextmanager
def _shards(config: OverlapConfig) -> Iterator[list[str]]:
    """Start shards behind links; yield their addresses."""
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(WorkerNetwork(config.shards))
        shards = [
            stack.enter_context(
                service("ps", "--insecure", host=network.address(place), prefix=network.prefix(place))
            )
            for place in range(config.shards)
        ]
        for place in range(config.shards):
            network.limit(place, config.rate * 8)
        yield [str(shard.address) for shard in shards]


@contextlib.contextmanager
def _job(config: OverlapConfig, shards: list[str], way: list[str]) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start the workers of a job; yield them once they are ready."""
    with contextlib.ExitStack() as stack:
        options = ("--workers", str(config.workers), "--policy", "even")
        manager = stack.enter_context(service("manager", *options))
        command = [sys.executable, "-m", "evenpace.lab.bench.overlap_worker"]
        command += ["--manager", str(manager.address), "--ps", *shards, *way]
        command += ["--layers", str(config.layers), "--workers", str(config.workers)]
        workers: list[subprocess.Popen[str]] = []
        for number in range(config.workers):
            line = [*command, "--name", f"w{number}"]
            worker = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            workers.append(worker)
        for worker in workers:
            _line(worker)  # it has its first batch
        yield workers


def _timed(workers: list["subprocess.Popen[str]"], compute: float) -> float:
    """Return the seconds of an iteration, median over the workers' own, with so much computing in it."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{_ITERATIONS} {compute}\n")
        worker.stdin.flush()
    return statistics.median([float(_line(worker)) for worker in workers])


def _line(worker: "subprocess.Popen[str]") -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise EvenpaceError("a worker of the benchmark has failed")
    return line
