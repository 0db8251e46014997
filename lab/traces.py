"""Traces of workers' speeds: the CSV format, and generated traces.

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
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from idl.records import IterationRecord
from idl.settings import Checked, Setting
from lab.csv_rows import read_rows
from predictors import Array

COLUMNS = ("worker", "iteration", "speed", "cpu", "memory")
EXPECTED = "expected"

_USAGE_COLUMNS = ("vm", "step", "cpu_percent", "mem_percent")
_FASTEST, _SLOWEST = 200.0, 50.0  # samples per second, between which idle workers of generated traces are
_LEAST_CPU = 0.05  # share of the CPU that the scheduler leaves a worker, whoever else wants it
_CROWDED_MEMORY = 0.9  # share in use above which paging slows a worker down
_PAGING = 0.5  # share of its speed that a worker keeps when all memory is in use
_CONTENTION_MEMORY = 0.4  # share in use, in traces of contention for the CPU


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
    """Read a trace; a gzipped file is unpacked.

    The rows may be in any order, and so may the columns.

    Raises:
        ValueError: The file is not a trace: a column is missing, unknown or there twice, a value is not
            allowed, a worker has two rows for an iteration, or there are no rows.
        OSError: The file cannot be read.
    """
    rows: dict[str, dict[int, tuple[float, ...]]] = {}
    for row in read_rows(path, COLUMNS, (EXPECTED,)):
        worker = row.text("worker")
        iteration = row.integer("iteration")
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
    """Write a trace, iteration by iteration; `read_trace` returns exactly the same numbers.

    Raises:
        OSError: The file cannot be written.
    """
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


class TraceRecorder:
    """Writer that appends a job's iterations to a trace as they come, in whole lines.

    The file can be read at any time. An existing file is continued, and its rows stay as they are.

    The usage that a worker reports with iteration k is the one known when k + 1 begins, so a row needs the
    report before. A worker's first iteration, and one after an iteration that it took no part in, has no row.

    Raises:
        ValueError: The file exists and is not a trace that can be continued.
        OSError: The file cannot be read or written.
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
        """Write the rows of iterations, from the job's first on.

        Returns:
            The number of rows written.

        Raises:
            ValueError: The file has rows that are not this job's.
            OSError: The file cannot be written.
        """
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
            self._last[worker] = (int(series.iterations[-1]), tuple(_text(float(value)) for value in last))

    def _rows(self, record: IterationRecord) -> Iterator[tuple[str, ...]]:
        for worker, part in record.parts.items():
            before = self._usage.get(worker)
            self._usage[worker] = (record.iteration, part.cpu_usage, part.memory_usage)
            if before is None or before[0] != record.iteration - 1:
                continue
            speed = part.speed
            values = tuple(_text(value) for value in (speed, *before[1:]))
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
        lines = _Lines()
        csv.writer(lines, lineterminator="\n").writerows(rows)
        self._stream.write("".join(lines).encode())


class _Lines(list[str]):
    """List of lines that a CSV writer can write to."""

    write = list.append


def _text(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


# -- made traces


@dataclass(frozen=True)
class Perturbation(Checked):
    """Unpredictable changes of speed: each iteration's is multiplied by noise, and at times by a spike.

    The noise is log-normal with a mean of 1.

    Raises:
        ValueError: A number is out of its range.
    """

    noise: Annotated[float, Setting("Relative standard deviation of each speed.", least=0, most=1)] = 0.05
    spikes: Annotated[float, Setting("Share of iterations with a spike.", least=0, most=1)] = 0.03
    spike_factor: Annotated[
        float, Setting("Of its speed that a worker has left in a spike.", above=0, most=1)
    ] = 0.5

    @property
    def mean(self) -> float:
        """Return the mean factor, with which a perfect predictor multiplies."""
        return 1 - self.spikes * (1 - self.spike_factor)

    def draw(self, iterations: int, random: "np.random.Generator") -> Array:
        """Draw factors, (iterations,)."""
        sigma = math.sqrt(math.log1p(self.noise**2))
        noise = np.exp(sigma * random.standard_normal(iterations) - sigma**2 / 2)
        return noise * np.where(random.random(iterations) < self.spikes, self.spike_factor, 1.0)


Usage = Mapping[str, tuple[Array, Array]]
"""CPU and memory in use at each step, both (steps,) and from 0 to 1, by the machine's name."""


def read_usage(path: Path) -> Usage:
    """Read machines' usage, `vm,step,cpu_percent,mem_percent`; a gzipped file is unpacked.

    Values over 100% count as 100%: in traces of clusters, memory that was swapped out counts on top.

    Raises:
        ValueError: A column is missing or unknown, a value is not allowed, a machine's steps are not 0, 1,
            2 and so on, or there are no rows.
        OSError: The file cannot be read.
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
    usage = {}
    for machine, steps in machines.items():
        cpu, memory = np.minimum(np.array(steps) / 100, 1.0).T
        usage[machine] = (cpu, memory)
    return usage


def response(cpu_usage: Array, memory_usage: Array) -> Array:
    """Return the share of its idle speed that a worker has while others use its machine.

    The result has the arguments' shape. It is the share of the CPU that is free, since a CPU worker's speed
    is proportional to what it gets (LB-BSP, section 3.2.1), but 5% at least, which a scheduler leaves to
    everybody; times a factor that falls from 1 where 90% of the memory is in use to 0.5 where all of it is,
    for paging.
    """
    crowding = np.clip((memory_usage - _CROWDED_MEMORY) / (1 - _CROWDED_MEMORY), 0.0, 1.0)
    return np.maximum(1 - cpu_usage, _LEAST_CPU) * (1 - (1 - _PAGING) * crowding)


def usage_trace(
    usage: Usage,
    *,
    workers: int | None = None,
    machines: Sequence[str] = (),
    iterations: int = 2000,
    iterations_per_step: int = 10,
    perturbation: Perturbation | None = None,
    seed: int = 0,
) -> Trace:
    """Make a trace of workers on machines that others use as `usage` says.

    An iteration's usage is that of its beginning, interpolated linearly between the machine's steps, and
    stays so until its end. Speeds follow from it by `response`. Machines are dealt to the workers in order,
    each worker getting as many as it takes to have steps enough, one after the other.

    Args:
        usage: Usage, as `read_usage` returns it.
        workers: Number of workers; by default as many as the named machines are enough for, or 4.
        machines: Names of the machines to use, in order; by default they are drawn.
        iterations: Number of iterations.
        iterations_per_step: Number of iterations in a step of the usage.
        perturbation: Changes of speed that do not show in the usage.

    Raises:
        ValueError: A number is out of its range, there is no such machine, it is named twice, or the
            machines are too few or too many.
    """
    _check_counts(iterations=iterations, iterations_per_step=iterations_per_step)
    for i, machine in enumerate(machines):
        if machine not in usage or machine in machines[:i]:
            raise ValueError(f"machine {machine!r}: there is none, or it is named twice")
    if workers is not None:
        _check_counts(workers=workers)
    elif not machines:
        workers = 4
    names = list(machines) or np.random.default_rng(seed).permutation(list(usage)).tolist()
    steps = math.ceil((iterations - 1) / iterations_per_step) + 1
    dealt: list[tuple[Array, Array]] = []  # each worker's CPU and memory usage, (steps,)
    while (workers is None and names) or (workers is not None and len(dealt) < workers):
        chain: list[tuple[Array, Array]] = []
        while sum(len(cpu) for cpu, _ in chain) < steps:
            if not names:
                raise ValueError(
                    f"the machines are enough for {len(dealt)} workers: each worker needs {steps} steps"
                )
            chain.append(usage[names.pop(0)])
        cpu_parts, memory_parts = zip(*chain, strict=True)
        dealt.append((np.concatenate(cpu_parts)[:steps], np.concatenate(memory_parts)[:steps]))
    if machines and names:
        raise ValueError(f"{workers} workers need fewer machines: {', '.join(names)} would not be used")
    perturbation = perturbation or Perturbation()
    trace = {}
    times = np.arange(iterations) / iterations_per_step  # in steps
    for i, (cpu_steps, memory_steps) in enumerate(dealt):
        random = np.random.default_rng([seed, i])
        cpu = np.interp(times, np.arange(steps), cpu_steps)
        memory = np.interp(times, np.arange(steps), memory_steps)
        speeds = random.uniform(_SLOWEST, _FASTEST) * response(cpu, memory)
        trace[f"worker-{i}"] = Series(
            np.arange(iterations),
            speeds * perturbation.draw(iterations, random),
            cpu,
            memory,
            speeds * perturbation.mean,
        )
    return trace


def contention_trace(
    *,
    workers: int = 4,
    iterations: int = 2000,
    slowdown: float = 0.5,
    shortest: int = 20,
    longest: int = 60,
    usage_noise: float = 0.02,
    perturbation: Perturbation | None = None,
    seed: int = 0,
) -> Trace:
    """Make a trace of workers with which others compete for the CPU, on and off.

    Each period of contention, and each one without, ends in the middle of an iteration, which is drawn
    evenly from the `shortest` to the `longest` after the period's beginning; so is the share of that
    iteration's samples that is processed before. Usage is measured as the iteration begins: a coming flip
    does not show. `expected` is that of a predictor that knows the usage, the period's age and how periods
    are drawn, but not when this one ends.

    Args:
        iterations: Number of iterations.
        slowdown: Share of its speed that a worker keeps under contention.
        shortest: Iterations of the shortest period.
        longest: Iterations of the longest period.
        usage_noise: Standard deviation of measured CPU and memory usage.
        perturbation: Changes of speed that do not show in the usage.

    Raises:
        ValueError: A number is out of its range.
    """
    _check_counts(workers=workers, iterations=iterations, shortest=shortest)
    if longest < shortest:
        raise ValueError(f"longest {longest}: must be at least the shortest, {shortest} iterations")
    if not 0 < slowdown < 1:
        raise ValueError(f"slowdown {slowdown}: must be above 0 and below 1")
    if not 0 <= usage_noise <= 1:
        raise ValueError(f"usage_noise {usage_noise}: must be from 0 to 1")
    perturbation = perturbation or Perturbation()
    mixed = math.log(slowdown) / (1 - 1 / slowdown)  # mean of 1 / (u + (1 - u) / slowdown), u from 0 to 1
    trace = {}
    for i in range(workers):
        random = np.random.default_rng([seed, i])
        idle_speed = random.uniform(_SLOWEST, _FASTEST)
        lengths = random.integers(shortest, longest, iterations // shortest + 1, endpoint=True)
        period = np.repeat(np.arange(len(lengths)), lengths)[:iterations]  # (iterations,)
        age = (np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths) + 1)[:iterations]
        contended = (period + random.integers(2)) % 2 == 1
        share = np.where(contended, slowdown, 1.0)
        other = np.where(contended, 1.0, slowdown)
        before = random.random(iterations)  # share of the samples processed before a flip
        flips = age == lengths[period]
        actual = np.where(flips, 1 / (before / share + (1 - before) / other), share)
        hazard = np.where(age < shortest, 0.0, 1 / (longest + 1 - age))
        trace[f"worker-{i}"] = Series(
            np.arange(iterations),
            idle_speed * actual * perturbation.draw(iterations, random),
            np.clip(1 - share + usage_noise * random.standard_normal(iterations), 0.0, 1.0),
            np.clip(_CONTENTION_MEMORY + usage_noise * random.standard_normal(iterations), 0.0, 1.0),
            idle_speed * ((1 - hazard) * share + hazard * mixed) * perturbation.mean,
        )
    return trace


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} {count}: must be at least 1")
