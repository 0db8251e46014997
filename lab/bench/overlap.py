"""Time iterations whose gradients are pushed by the step, and while the backward pass runs.

Workers' layers compute for a time that is given, so that this machine's processors are not what limits them.
Shards and workers run in network namespaces whose bandwidth the kernel bounds, which takes root and iproute2.

Example:
  evenpace lab bench overlap --rate 100 --json overlap.json
"""

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf
from typing import Annotated, Any

from rich.console import Console
from rich.progress import track

from evenpace.local.cluster import service
from evenpace.local.terminal import make_table
from idl.errors import EvenpaceError
from idl.settings import Checked, Setting
from lab.bench.shard_places import shards_in_places
from lab.fields import Repeats
from lab.network import WorkerNetwork
from lab.script_options import as_argument


@dataclass(frozen=True)
class OverlapConfig(Checked):
    """Workers, model and links (InvalidRequestError: a value is not allowed)."""

    workers: Annotated[int, Setting("Of the job.", least=1, most=100)] = 2
    shards: Annotated[int, Setting("Each behind a link of --rate.", least=1, most=100)] = 2
    layers: Annotated[int, Setting("Of the model, with 2 MiB of parameters each.", least=1)] = 20
    rate: Annotated[
        float, Setting("MB/s of each link, each way; 0: without a limit.", least=0, below=1e5)
    ] = 100.0
    compute: Annotated[
        float,
        Setting(
            "Seconds of computing in an iteration; 0: as transfers take where the step makes them all.",
            least=0,
            below=inf,
        ),
    ] = 0.0
    iterations: Annotated[int, Setting("Timed at once; the median of the last half counts.", least=2)] = 24
    repeats: Repeats = 3


_WAYS: dict[str, dict[str, Any]] = {
    "pushed by the step": {"bucket_mb": None},
    "while computing": {"bucket_mb": 1.0},
    "and in bfloat16": {"bucket_mb": 1.0, "push_dtype": "bfloat16"},
}
_STOCK = "stock DDP on gloo"


def run(config: OverlapConfig, console: Console) -> dict[str, Any]:
    """Measure, and print and return the figures.

    Each way's transfers are timed without computing, and then with as much computing as they take where the
    step makes them all; the ways take turns.
    """
    taken: dict[str, list[float]] = {way: [] for way in (*_WAYS, _STOCK)}
    alone: dict[str, list[float]] = {way: [] for way in taken}
    with _places(config) as (network, shards):
        for _ in track(range(config.repeats), description=f"{config.layers} layers", console=console):
            for way in taken:
                with _job(config, network, shards, _WAYS.get(way)) as workers:
                    alone[way].append(_timed(workers, config.iterations, 0.0))
                    compute = config.compute or statistics.median(alone["pushed by the step"])
                    taken[way].append(_timed(workers, config.iterations, compute))
    transfers = {way: statistics.median(times) for way, times in alone.items()}
    transfer = transfers["pushed by the step"]
    compute = config.compute or transfer
    figures: dict[str, Any] = asdict(config) | {
        "transfer_s": transfers,
        "compute_s": compute,
        "iteration_s": {way: statistics.median(times) for way, times in taken.items()},
        "iterations_s": taken,
    }
    _show(console, config, figures)
    return figures


def _show(console: Console, config: OverlapConfig, figures: dict[str, Any]) -> None:
    compute = figures["compute_s"]
    links = f"behind {config.rate:g} MB/s each, " if config.rate else ""
    title = (
        f"{config.workers} workers and {config.shards} shards, {links}computing {1000 * compute:.0f} ms; "
        f"medians of {config.repeats}"
    )
    columns = ("transfers ms", "iteration ms", "to the longer one", "to stock DDP")
    table = make_table(title, "gradients", *columns)
    for way, seconds in figures["iteration_s"].items():
        transfer = figures["transfer_s"][way]
        table.add_row(
            way,
            f"{1000 * transfer:.0f}",
            f"{1000 * seconds:.0f}",
            f"{seconds / max(compute, transfer):.2f}",
            f"{seconds / figures['iteration_s'][_STOCK]:.2f}",
        )
    console.print(table)


@contextlib.contextmanager
def _places(config: OverlapConfig) -> Iterator[tuple[WorkerNetwork, list[str]]]:
    """Start shards behind links, and make places for workers after theirs; yield the shards' addresses."""
    places = config.shards + config.workers
    with shards_in_places(config.shards, places) as (network, shards):
        for place in range(places) if config.rate else ():
            network.limit(place, config.rate * 8)
        yield network, [str(shard.address) for shard in shards]


@contextlib.contextmanager
def _job(
    config: OverlapConfig, network: WorkerNetwork, shards: list[str], way: dict[str, Any] | None
) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start the workers of a job, or without a way those of stock DDP; yield them once they are ready."""
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"layers": config.layers, "workers": config.workers}
        if way is None:
            options["stock"] = f"tcp://{network.address(config.shards)}:29500"
        else:
            words = ("--workers", str(config.workers), "--policy", "even", "--insecure")
            manager = stack.enter_context(service("manager", *words, host=network.host))
            options |= {"manager": str(manager.address), "ps": shards, **way}
        workers: list[subprocess.Popen[str]] = []
        for number in range(config.workers):
            line = [*network.prefix(config.shards + number), sys.executable, "-m", "lab.bench.overlap_worker"]
            line.append(as_argument(rank=number, **options))
            worker = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            workers.append(worker)
        for worker in workers:
            _line(worker)  # it has its first batch
        yield workers


def _timed(workers: list["subprocess.Popen[str]"], iterations: int, compute: float) -> float:
    """Return the seconds of an iteration, median over the workers' own, with so much computing in it."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{iterations} {compute}\n")
        worker.stdin.flush()
    return statistics.median([float(_line(worker)) for worker in workers])


def _line(worker: "subprocess.Popen[str]") -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise EvenpaceError("a worker of the benchmark has failed")
    return line
