"""Readers of the shards' ledgers and the workers' journals: files in, values out."""

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Step:
    """Line of a ledger: the shard took the step of an iteration, with slices (start, count, worker)."""

    iteration: int
    attempt: int
    slices: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True)
class Rewind:
    """Line of a ledger: the shard goes on from a version, in a new attempt."""

    attempt: int
    version: int


@dataclass
class ShardSteps:
    """The steps of a shard that hold, after all rewinds."""

    name: str  # name of the shard
    every: int  # versions between two checkpoints
    steps: list[Step] = field(default_factory=list)  # steps that hold, that of iteration k at index k
    rewinds: int = 0  # number of rewinds
    redone: int = 0  # number of iterations whose steps a rewind took back
    # By attempt, the highest version that was reached in it.
    extent: dict[int, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)  # contradictions between lines, in words
    attempt: int = 0  # latest attempt

    @classmethod
    def of(cls, name: str, every: int, entries: Iterable[Step | Rewind]) -> Self:
        """Return the steps of a shard with this ledger."""
        steps = cls(name, every)
        for entry in entries:
            steps.add(entry)
        return steps

    def add(self, entry: Step | Rewind) -> None:
        """Add the next line of the ledger."""
        if isinstance(entry, Rewind):
            self._rewind(entry)
        elif entry.iteration != len(self.steps) or entry.attempt != self.attempt:
            self.violations.append(
                f"{self.name}: step {entry.iteration} in attempt {entry.attempt}, where step "
                f"{len(self.steps)} in attempt {self.attempt} was due"
            )
        else:
            self.steps.append(entry)
        self.extent[self.attempt] = max(self.extent.get(self.attempt, 0), len(self.steps))

    def _rewind(self, entry: Rewind) -> None:
        version = len(self.steps)
        if (entry.attempt, entry.version) == (self.attempt, version):
            return
        if entry.version > version or entry.attempt <= self.attempt:
            self.violations.append(
                f"{self.name}: rewound to version {entry.version} in attempt {entry.attempt}, "
                f"from version {version} in attempt {self.attempt}"
            )
        elif entry.version < version and entry.version % self.every:
            self.violations.append(
                f"{self.name}: updates from {entry.version} to {version} were taken back, to no checkpoint"
            )
        self.rewinds += 1
        self.redone += version - entry.version
        self.attempt = entry.attempt
        del self.steps[entry.version :]


@dataclass
class Journal:
    """Journal of one worker, over all its starts."""

    worker: str  # name of the worker
    # Slices by (attempt, iteration): start, count, crc of the samples' numbers, and of the batch as the
    # worker was told: epoch, start, and samples.
    computed: dict[tuple[int, int], list[tuple[int, int, int, int, int, int]]] = field(default_factory=dict)
    # For each start, (attempt, version) of the parameters that it received, in order.
    reached: list[list[tuple[int, int]]] = field(default_factory=list)
    # (attempt, version, fingerprint) of some of these parameters.
    prints: list[tuple[int, int, list[float]]] = field(default_factory=list)
    # (attempt, iteration) of the steps that it took itself, where workers do.
    stepped: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def of(cls, worker: str, paths: Iterable[Path]) -> Self:
        """Read a worker's journals, in the order of its starts."""
        journal = cls(worker)
        for path in paths:
            journal.read(path)
        return journal

    def read(self, path: Path) -> None:
        """Add the journal of one start of the worker."""
        reached: list[tuple[int, int]] = []
        for what, *values in read_lines(path):
            if what == "computed":
                attempt, iteration, *part = values
                start, count, crc, epoch, batch_start, total = part
                slices = self.computed.setdefault((attempt, iteration), [])
                slices.append((start, count, crc, epoch, batch_start, total))
            elif what == "stepped":
                attempt, iteration = values
                self.stepped.add((attempt, iteration))
            else:
                attempt, version, fingerprint = values
                reached.append((attempt, version))
                if fingerprint:
                    self.prints.append((attempt, version, fingerprint))
        self.reached.append(reached)


def ledger_of(journals: Sequence[Journal]) -> Iterator[Step | Rewind]:
    """Yield what a shard would have written down, from journals of workers that take the steps themselves.

    An attempt goes on from the version with which its members began it. A step of it counts if one of them
    has taken it, and was made of what all of them have computed.
    """
    begins: dict[int, int] = {}
    for journal in journals:
        for attempt, version in itertools.chain.from_iterable(journal.reached):
            begins[attempt] = min(version, begins.get(attempt, version))
    stepped: dict[int, list[int]] = {attempt: [] for attempt in begins}
    for attempt, iteration in sorted(set().union(*(journal.stepped for journal in journals))):
        stepped[attempt].append(iteration)
    for attempt, begin in sorted(begins.items()):
        yield Rewind(attempt, begin)
        for iteration in stepped[attempt]:
            slices = (
                (start, count, journal.worker)
                for journal in journals
                for start, count, *_ in journal.computed.get((attempt, iteration), ())
                if count
            )
            yield Step(iteration, attempt, tuple(slices))


def read_ledger(paths: Iterable[Path]) -> Iterator[Step | Rewind]:
    """Read a shard's ledger of one job."""
    for path in paths:
        yield from filter(None, map(entry, read_lines(path)))


def entry(line: Any) -> Step | Rewind | None:
    """Return the step or the rewind in a line of a ledger; None for other lines, such as a shard's restart.

    A slice that broke off part way is not among a step's slices; those that replaced it are.
    """
    if "slices" in line:
        slices = tuple((start, count, worker) for start, count, worker in line["slices"])
        return Step(line["iteration"], line["attempt"], slices)
    version = line.get("rewound", line.get("initialised"))
    return None if version is None else Rewind(line["attempt"], version)


def read_finals(paths: Iterable[Path]) -> dict[str, tuple[int, NDArray[np.float64]]]:
    """Return workers' last versions and their parameters, (elements,), by worker; of the files that exist."""
    finals = {}
    for path in filter(Path.exists, paths):
        with np.load(path) as saved:
            finals[path.stem] = int(saved["version"]), saved["parameters"]
    return finals


def read_lines(path: Path) -> Iterator[Any]:
    """Read the JSON lines of a file."""
    with path.open("rb") as file:
        yield from parse(file)


def parse(lines: Iterable[bytes]) -> Iterator[Any]:
    """Parse JSON lines; those that a kill has left unfinished are skipped."""
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)
