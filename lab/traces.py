"""Traces of workers' speeds: the CSV format, and what generated traces have in common.

Predictors are compared on traces. A trace's columns are `worker,iteration,speed,cpu,memory`, and
`expected` where it is known; a row is one worker's part in one iteration k:

- `speed`: v^k in samples per second; empty where the worker had no samples.
- `cpu`, `memory`: the usage known when iteration k begins, from 0 to 1: c^k and m^k in LB-BSP, eq. 4, the
  *current* usage for predicting v^k. `cpu` is the share of the worker's CPUs that is taken.
- `expected`: the speed that a perfect predictor would name before iteration k. Its error is the noise
  floor, which no predictor can beat.

Workers may have different iterations, and gaps in them: a worker without a row took no part. This module
knows no predictor, and nothing of how a running job is reached.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from idl.records import IterationRecord
from idl.settings import Checked, Setting
from lab.csv_rows import read_rows
from predictors import Array

COLUMNS = ("worker", "iteration", "speed", "cpu", "memory")
EXPECTED = "expected"

_USAGE_COLUMNS = ("vm", "step", "cpu_percent", "mem_percent")
_LEAST_CPU = 0.05  # share of the CPU that the scheduler leaves a worker, whoever else wants it
_CROWDED_MEMORY = 0.9  # share in use above which paging slows a worker down
_PAGING = 0.5  # share of its speed that a worker keeps when all memory is in use


@dataclass(frozen=True)
class Series:
    """One worker's rows, in the order of iterations; each array is (rows,)."""

    iterations: NDArray[np.int64]  # iteration numbers, increasing
    speeds: Array  # samples per second; NaN where there were no samples
    cpu_usage: Array  # CPU usage as each iteration begins, from 0 to 1
    memory_usage: Array  # memory usage, likewise
    expected: Array  # samples per second that a perfect predictor would name; NaN where it is not known


Trace = Mapping[str, Series]
"""Rows of each worker, by its name."""


# -- the format


def read_trace(path: Path) -> Trace:
    """Read a trace, plain or gzipped, whose rows and columns may be in any order (ValueError: it is none)."""
    rows: dict[str, dict[int, tuple[float, ...]]] = {}
    for row in read_rows(path, COLUMNS, (EXPECTED,)):
        worker, iteration = row.text("worker"), row.integer("iteration")
        own = rows.setdefault(worker, {})
        if iteration in own:
            raise row.error("iteration", f"{worker!r} has a row for it already")
        own[iteration] = (
            row.positive("speed", "where there were no samples"),
            row.number("cpu", 1.0),
            row.number("memory", 1.0),
            row.positive(EXPECTED, "where it is not known"),
        )
    if not rows:
        raise ValueError(f"{path}: there are no rows")
    trace = {}
    for worker, own in rows.items():
        iterations = np.array(sorted(own), dtype=np.int64)
        speeds, cpu, memory, expected = np.array([own[k] for k in iterations.tolist()]).T
        trace[worker] = Series(iterations, speeds, cpu, memory, expected)
    return trace


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace, iteration by iteration; `read_trace` returns exactly the same numbers."""
    known = any(not np.isnan(series.expected).all() for series in trace.values())
    rows: list[tuple[int, list[str]]] = []
    for worker, series in trace.items():
        columns = [series.speeds, series.cpu_usage, series.memory_usage]
        columns += [series.expected] if known else []
        for iteration, values in zip(series.iterations.tolist(), np.array(columns).T.tolist(), strict=True):
            rows.append((iteration, [worker, str(iteration), *map(_text, values)]))
    rows.sort(key=lambda row: row[0])  # stable: the workers keep their order
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow((*COLUMNS, EXPECTED) if known else COLUMNS)
        writer.writerows(row for _, row in rows)


def write_made(trace: Trace, path: Path, console: Console) -> dict[str, int]:
    """Write a generated trace, and print and return its numbers of rows and workers."""
    write_trace(trace, path)
    rows = sum(len(series.iterations) for series in trace.values())
    console.print(f"{rows:,} rows of {len(trace)} workers in {path}", soft_wrap=True)
    return {"rows": rows, "workers": len(trace)}


class TraceRecorder:
    """Writer that appends a job's iterations to a trace as they come, in whole lines.

    The file can be read at any time. An existing file is continued, and its rows stay as they are
    (ValueError: it is not a trace, or another job's).

    The usage that a worker reports with iteration k is the one known when k + 1 begins, so a row needs the
    report before. A worker's first iteration, and one after an iteration that it took no part in, has no row.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._usage: dict[str, tuple[int, float, float]] = {}  # of the last report, with its iteration
        self._last: dict[str, tuple[int, tuple[str, ...]]] = {}  # the file's last rows, yet to be met again
        content = path.read_bytes() if path.exists() else b""
        if content:
            self._continue(content)
        self._stream = path.open("ab", buffering=0)
        if not content:
            self._write([COLUMNS])

    def append(self, records: Iterable[IterationRecord]) -> int:
        """Write the rows of iterations, from the job's first on, and return their number."""
        rows = [row for record in records for row in self._rows(record)]
        self._write(rows)
        return len(rows)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _continue(self, content: bytes) -> None:
        header, newline, _ = content.partition(b"\n")
        if header.decode(errors="replace").strip() != ",".join(COLUMNS):
            raise ValueError(
                f"{self._path}: there is such a file, and it does not begin with {','.join(COLUMNS)}"
            )
        if not content.endswith(b"\n"):
            raise ValueError(f"{self._path}: the last line is cut off; remove it to continue the file")
        if content == header + newline:
            return
        for worker, series in read_trace(self._path).items():
            last = (series.speeds[-1], series.cpu_usage[-1], series.memory_usage[-1])
            self._last[worker] = int(series.iterations[-1]), tuple(_text(float(value)) for value in last)

    def _rows(self, record: IterationRecord) -> Iterator[tuple[str, ...]]:
        for worker, part in record.parts.items():
            before = self._usage.get(worker)
            self._usage[worker] = (record.iteration, part.cpu_usage, part.memory_usage)
            if before is None or before[0] != record.iteration - 1:
                continue
            values = tuple(map(_text, (part.speed, *before[1:])))
            if worker in self._last and self._has(worker, record.iteration, values):
                continue
            yield (worker, str(record.iteration), *values)

    def _has(self, worker: str, iteration: int, values: tuple[str, ...]) -> bool:
        """Return whether the file has the row; its last row must be this job's."""
        last, known = self._last[worker]
        if iteration < last:
            return True
        if (iteration, values) != (last, known):
            raise ValueError(
                f"{self._path}: the row of {worker!r} for iteration {last} is not this job's, or the job has "
                "forgotten it; choose another file"
            )
        del self._last[worker]
        return True

    def _write(self, rows: Sequence[tuple[str, ...]]) -> None:
        """Write rows in one piece, so that a kill of this process leaves whole lines."""
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows(rows)
        self._stream.write(lines.getvalue().encode())


def _text(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


# -- made traces


_SPIKE = 0.5  # share of its speed that a worker has left in a spike


@dataclass(frozen=True)
class Perturbation:
    """Unpredictable changes of speed: each iteration's is multiplied by noise, and at times by a spike.

    The noise is log-normal with a mean of 1.
    """

    noise: float = 0.05  # relative standard deviation of each speed
    spikes: float = 0.03  # share of iterations with a spike

    @property
    def mean(self) -> float:
        """Return the mean factor, with which a perfect predictor multiplies."""
        return 1 - self.spikes * (1 - _SPIKE)

    def draw(self, iterations: int, random: "np.random.Generator") -> Array:
        """Draw factors, (iterations,)."""
        sigma = math.sqrt(math.log1p(self.noise**2))
        noise = np.exp(sigma * random.standard_normal(iterations) - sigma**2 / 2)
        return noise * np.where(random.random(iterations) < self.spikes, _SPIKE, 1.0)


@dataclass(frozen=True, kw_only=True)
class MadeTraceConfig(Checked):
    """What all generated traces have in common."""

    iterations: Annotated[int, Setting("Of each worker.", least=1)] = 2000
    perturbation: Perturbation = field(default_factory=Perturbation)  # does not show in the usage
    seed: Annotated[int, Setting("Of all that is drawn.", least=0)] = 0
    out: Annotated[Path, Setting("The trace, a CSV file.", metavar="FILE")] = Path("trace.csv")


FASTEST, SLOWEST = 200.0, 50.0
"""Samples per second, between which idle workers of generated traces are."""


Usage = Mapping[str, tuple[Array, Array]]
"""CPU and memory in use at each step, both (steps,) and from 0 to 1, by the machine's name."""


def read_usage(path: Path) -> Usage:
    """Read machines' usage, `vm,step,cpu_percent,mem_percent`; a gzipped file is unpacked.

    Values over 100% count as 100%: in traces of clusters, memory that was swapped out counts on top. A
    machine's steps are 0, 1, 2 and so on.
    """
    machines: dict[str, list[tuple[float, float]]] = {}
    for row in read_rows(path, _USAGE_COLUMNS):
        machine = row.text("vm")
        steps = machines.setdefault(machine, [])
        if row.integer("step") != len(steps):
            raise row.error("step", f"the next step of machine {machine!r} must be {len(steps)}")
        steps.append((row.number("cpu_percent"), row.number("mem_percent")))
    if not machines:
        raise ValueError(f"{path}: there are no rows")
    shares = {machine: np.minimum(np.array(steps) / 100, 1.0) for machine, steps in machines.items()}
    return {machine: (its[:, 0], its[:, 1]) for machine, its in shares.items()}


def response(cpu_usage: Array, memory_usage: Array) -> Array:
    """Return the share of its idle speed that a worker has while others use its machine.

    The result has the arguments' shape. It is the share of the CPU that is free, since a CPU worker's speed
    is proportional to what it gets (LB-BSP, section 3.2.1), but 5% at least, which a scheduler leaves to
    everybody; times a factor that falls from 1 where 90% of the memory is in use to 0.5 where all of it is,
    for paging.
    """
    crowding = np.clip((memory_usage - _CROWDED_MEMORY) / (1 - _CROWDED_MEMORY), 0.0, 1.0)
    return np.maximum(1 - cpu_usage, _LEAST_CPU) * (1 - (1 - _PAGING) * crowding)
