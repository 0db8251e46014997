"""Measure what computing in micro-batches costs, against plain accumulation in PyTorch.

Both take the same micro-batches in turns, in one process: the throughput of the loop over them, and with the
step, which ours has at a parameter server. Memory is that of training on single micro-batches.

Example:
  evenpace lab bench micro-batches --iterations 30 --json micro-batches.json
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.progress import track

from evenpace.local.cluster import LocalCluster
from evenpace.local.terminal import make_table
from idl.errors import UnavailableError
from idl.settings import Checked, Setting
from lab.fields import whole_numbers
from lab.script_options import as_argument


@dataclass(frozen=True)
class MicroBatchesConfig(Checked):
    """Numbers of micro-batches and iterations (InvalidRequestError: a value is not allowed)."""

    number: Annotated[int, Setting("Micro-batches of an iteration.", least=1)] = 16
    iterations: Annotated[int, Setting("Of each kind; medians are over these.", least=1)] = 15
    numbers: Annotated[
        tuple[int, ...],
        Setting(
            "Micro-batches of an iteration, for memory.",
            name="memory",
            metavar="COUNT,...",
            read=partial(whole_numbers, "memory", least=1),
        ),
    ] = (1, 4, 16, 64)


_CASES = (
    ("digits", ("--batch-norm", "--dropout", "0.2"), (4, 16, 64)),
    ("transformer", ("--dropout", "0.2"), (1, 4, 16)),
    ("resnet32", ("--dropout", "0.2", "--augment"), (2, 8)),
)
"""Workloads, their options, and the samples of a micro-batch."""

_MEMORY = ("resnet32", ("--dropout", "0.2", "--augment"), 16)
"""Workload whose memory is measured, its options, and the samples of a micro-batch."""

_MEMORY_ITERATIONS = 2


def run(config: MicroBatchesConfig, console: Console) -> dict[str, Any]:
    """Measure times and memory with workers of `micro_batches_worker`; print and return the figures."""
    cases = [(name, options, size) for name, options, sizes in _CASES for size in sizes]
    times = [
        _compare(name, size, _measure(name, options, size, config.number, config.iterations))
        for name, options, size in track(cases, description="times", console=console)
    ]
    memory = _memory(config, console)
    figures = {
        **asdict(config),
        "times": times,
        "memory": memory,
    }
    _show(console, figures)
    return figures


def _compare(name: str, size: int, taken: Mapping[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Return medians over the iterations; a ratio is taken within each, where the machine differs least."""
    pairs = list(zip(taken["plain"], taken["evenpace"], strict=True))
    return {
        "workload": name,
        "micro_batch": size,
        "plain_s": statistics.median(plain for (plain, _), _ in pairs),
        "loop_share": statistics.median(plain / ours for (plain, _), (ours, _) in pairs),
        "iteration_share": statistics.median(plain / ours for (_, plain), (_, ours) in pairs),
    }


def _memory(config: MicroBatchesConfig, console: Console) -> dict[str, Any]:
    """Return the bytes of training by plain PyTorch on single micro-batches, and of ours by their number."""
    name, options, size = _MEMORY

    def measure(kind: str, number: int) -> int:
        measured = _measure(name, options, size, number, _MEMORY_ITERATIONS, kind)
        return int(measured["bytes"])

    plain = measure("plain", 1)
    ours = {
        number: measure("evenpace", number)
        for number in track(config.numbers, description="memory", console=console)
    }
    return {
        "workload": name,
        "micro_batch": size,
        "plain_bytes": plain,
        "bytes": {str(number): taken for number, taken in ours.items()},
        "of_plain": {str(number): taken / plain for number, taken in ours.items()},
    }


def _measure(
    name: str, options: Sequence[str], size: int, number: int, iterations: int, memory: str | None = None
) -> dict[str, Any]:
    """Run a worker with services of its own; return times, or the `memory` of "plain" or of "evenpace"."""
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder)) as cluster:
        (shard,) = cluster.shard_addresses
        argument = as_argument(
            manager=str(cluster.manager),
            ps=str(shard),
            parent=os.getpid(),
            workload=name,
            options=options,
            micro_batch=size,
            number=number,
            iterations=iterations,
            memory=memory,
        )
        line = [sys.executable, "-m", "lab.bench.micro_batches_worker", argument]
        # Large blocks go back to the system when they are freed, so that memory is what tensors occupy.
        environment = os.environ | ({"MALLOC_MMAP_THRESHOLD_": "65536"} if memory else {})
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise UnavailableError(f"a worker ended with status {done.returncode}:\n{done.stderr}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _show(console: Console, figures: Mapping[str, Any]) -> None:
    table = make_table(
        f"Throughput of plain accumulation's, {figures['number']} micro-batches an iteration",
        *("workload", "samples", "ms a micro-batch", "loop", "with the step"),
    )
    for case in figures["times"]:
        table.add_row(
            case["workload"],
            str(case["micro_batch"]),
            f"{case['plain_s'] / figures['number'] * 1e3:.1f}",
            f"{case['loop_share']:.1%}",
            f"{case['iteration_share']:.1%}",
        )
    console.print(table)
    memory = figures["memory"]
    table = make_table(
        f"Memory of {memory['workload']}, micro-batches of {memory['micro_batch']}",
        *("micro-batches", "MiB", "of plain training on one"),
    )
    table.add_row("1, plain", f"{memory['plain_bytes'] / 2**20:.1f}", "")
    for number, taken in memory["bytes"].items():
        table.add_row(number, f"{taken / 2**20:.1f}", f"{memory['of_plain'][number]:.1%}")
    console.print(table)
