"""Time push and pull over several shards, each behind a link of limited bandwidth.

They are measured beside the time that the links allow: with workers * bytes / shards through each link, that
is workers * bytes / (shards * rate). Each shard runs in a network namespace of its own, whose bandwidth the
kernel bounds, which takes root and iproute2; workers are processes that send and receive as a training loop
does.

Example:
  evenpace lab bench shards --mib 100 --shards 1,2,4 --json shards.json
"""

import contextlib
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from rich.progress import track

import idl
from evenpace.local.terminal import make_table
from idl.errors import EvenpaceError
from idl.layout import Group, Layout
from idl.plan import Assignment
from idl.settings import Checked, Setting
from idl.synchronisation import Synchronisation
from lab.bench.shard_places import shards_in_places
from lab.fields import Mib, Repeats, whole_numbers
from rpc.address import Address
from rpc.client import Client
from worker.shard_clients import ShardClients


@dataclass(frozen=True)
class ShardsConfig(Checked):
    """Shards, workers and links (InvalidRequestError: a number is out of its range)."""

    shards: Annotated[
        tuple[int, ...],
        Setting(
            "So many at a time, one measurement for each number.",
            metavar="COUNT,...",
            read=partial(whole_numbers, "shards", least=1),
            most=100,
        ),
    ] = (1, 2, 4)
    workers: Annotated[int, Setting("All push, and pull, at once.", least=1, most=100)] = 3
    mib: Mib = 100
    rate: Annotated[float, Setting("MB/s of each link, each way.", above=0, below=1e5)] = 100.0
    repeats: Repeats = 9  # measured rounds, after one that does not count

    def ideal(self, shards: int) -> float:
        """Seconds in which links that carry nothing else could bring all of it."""
        return self.workers * self.mib * 2**20 / (shards * self.rate * 1e6)


_TIMEOUT = 120.0  # seconds for one push or pull
_STEPS = ("push", "pull")


def run(config: ShardsConfig, console: Console) -> dict[str, Any]:
    """Measure, and print and return the figures.

    The numbers of shards take turns, so that other load of the machine falls on all of them alike.
    """
    rounds: dict[tuple[int, str], list[float]] = {}
    with _cluster(config) as workers:
        for repeat in track(range(config.repeats + 1), description=f"{config.mib} MiB", console=console):
            for shards in config.shards:
                for step in _STEPS:
                    measured = _round(workers, (step, shards, repeat))
                    if repeat:
                        rounds.setdefault((shards, step), []).append(measured)
    figures: dict[str, Any] = asdict(config)
    figures["measured"] = [_figures(config, *key, its) for key, its in rounds.items()]
    _show(console, config, figures)
    return figures


def _figures(config: ShardsConfig, shards: int, step: str, seconds: Sequence[float]) -> dict[str, Any]:
    median = statistics.median(seconds)
    return {
        "shards": shards,
        "step": step,
        "ideal_s": config.ideal(shards),
        "median_s": median,
        "fastest_s": min(seconds),
        "slowest_s": max(seconds),
        "ratio": median / config.ideal(shards),
    }


def _show(console: Console, config: ShardsConfig, figures: dict[str, Any]) -> None:
    title = (
        f"{config.mib} MiB by {config.workers} workers, each shard behind {config.rate:g} MB/s, "
        f"medians of {config.repeats}"
    )
    columns = ("ideal s", "median s", "from s", "to s", "ratio")
    table = make_table(title, "shards", *columns)
    keys = ("ideal_s", "median_s", "fastest_s", "slowest_s", "ratio")
    for row in figures["measured"]:
        table.add_row(f"{row['step']} at {row['shards']}", *(f"{row[key]:.2f}" for key in keys))
    console.print(table)


def _round(workers: Sequence[Connection], command: tuple[str, int, int]) -> float:
    """Let all workers do one step at the same time, and return its seconds."""
    began = time.perf_counter()
    for worker in workers:
        worker.send(command)
    for number, worker in enumerate(workers):
        _answer(worker, number)
    return time.perf_counter() - began


def _answer(worker: Connection, number: int) -> None:
    try:
        failure = worker.recv() if worker.poll(2 * _TIMEOUT) else f"no answer for {2 * _TIMEOUT:g} s"
    except EOFError:
        failure = "its process has ended"
    if failure is not None:
        raise EvenpaceError(f"worker {number} of the benchmark: {failure}")


@contextlib.contextmanager
def _cluster(config: ShardsConfig) -> Iterator[list[Connection]]:
    """Start shards behind links, and workers that have opened a job for each number of shards; yield them."""
    most = max(config.shards)
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        network, shards = stack.enter_context(shards_in_places(most, most))
        addresses = [shard.address for shard in shards]
        workers = []
        for number in range(config.workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, number, addresses, config), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            theirs.close()
            workers.append(ours)
            _answer(ours, number)  # the first one sets the parameters
        for place in range(most):
            network.limit(place, config.rate * 8)
        yield workers


def _work(connection: Connection, number: int, addresses: Sequence[Address], config: ShardsConfig) -> None:
    """Run a worker's process: steps in, None or the reason of a failure out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the process that measures
    with contextlib.suppress(EOFError):
        try:
            worker = _Worker(number, addresses, config)
            connection.send(None)
            while True:
                worker.do(*connection.recv())
                connection.send(None)
        except EvenpaceError as error:
            connection.send(str(error))


class _Worker:
    """One worker of a job for each number of shards."""

    def __init__(self, number: int, addresses: Sequence[Address], config: ShardsConfig) -> None:
        elements = config.mib * 2**20 // 4
        self._number, self._workers = number, config.workers
        self._gradient = np.zeros(elements, np.float32)
        self._parameters = np.zeros(elements, np.float32)
        layout = Layout("float32", "sgd", (Group(elements, {"lr": 0.1}),))
        self._shards = {}
        for count in config.shards:
            shards = ShardClients([_client(address) for address in addresses[:count]], _TIMEOUT)
            shards.identify(idl.common.Identity(f"bench/{count}", f"w{number}", str(os.getpid())))
            shards.open(layout, Synchronisation(), self._parameters, self._assignment(0), None)
            self._shards[count] = shards

    def do(self, step: str, shards: int, iteration: int) -> None:
        """Push the gradient of an iteration, or pull the parameters after it."""
        if step == "push":
            self._shards[shards].push(self._assignment(iteration), self._gradient, None)
        else:
            self._shards[shards].pull(iteration + 1, self._parameters)

    def _assignment(self, iteration: int) -> Assignment:
        start = iteration * self._workers
        return Assignment(iteration, 0, start + self._number, 1, self._workers, batch_start=start)


def _client(address: Address) -> Client:
    return Client(idl.parameter_server.ParameterServer, address, "parameter server", call_timeout=_TIMEOUT)
