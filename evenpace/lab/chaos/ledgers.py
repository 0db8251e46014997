"""What was written down: the shards' ledgers, the workers' journals. Files in, values out."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """A shard has taken the step of an iteration, with slices (start, count, worker)."""

    iteration: int
    attempt: int
    slices: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True)
class Rewind:
    """A shard goes on from a version, in a new attempt."""

    attempt: int
    version: int


@dataclass
class ShardSteps:
    """The steps of a shard that hold, after all rewinds.

    Attributes:
        name: The shard's.
        every: Versions between two checkpoints.
        steps: That hold, that of iteration k at k.
        rewinds: Lines about them.
        attempt: The latest.
        redone: Iterations whose steps a rewind took back.
        extent: By attempt: the highest version that was reached in it.
        violations: Lines that contradict those before.
    """

    name: str
    every: int
    steps: list[Step] = field(default_factory=list)
    rewinds: int = 0
    redone: int = 0
    extent: dict[int, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    attempt: int = 0

    def add(self, entry: Step | Rewind) -> None:
        """Take in the next line of the ledger."""
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
    """What one worker wrote, over all its starts.

    Attributes:
        worker: Its name.
        computed: By (attempt, iteration): (start, count, crc of the samples' numbers).
        reached: (attempt, version) that it got parameters of, in order, each start's in a list.
        prints: (attempt, version, fingerprint) of these parameters, now and then.
    """

    worker: str
    computed: dict[tuple[int, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    reached: list[list[tuple[int, int]]] = field(default_factory=list)
    prints: list[tuple[int, int, list[float]]] = field(default_factory=list)

    def read(self, path: Path) -> None:
        """Add what one start of the worker wrote."""
        reached: list[tuple[int, int]] = []
        for what, *values in read_lines(path):
            if what == "computed":
                attempt, iteration, start, count, crc = values
                self.computed.setdefault((attempt, iteration), []).append((start, count, crc))
            else:
                attempt, version, fingerprint = values
                reached.append((attempt, version))
                if fingerprint:
                    self.prints.append((attempt, version, fingerprint))
        self.reached.append(reached)


def read_ledger(paths: Iterable[Path]) -> Iterator[Step | Rewind]:
    """A shard's ledger, of one job."""
    for path in paths:
        yield from filter(None, map(entry, read_lines(path)))


def entry(line: Any) -> Step | Rewind | None:
    """One line of a ledger; None for one that tells neither, such as that the shard is back.

    Of a slice that broke off part way, others brought what was missing: they are among the slices instead.
    """
    if "slices" in line:
        slices = tuple((start, count, worker) for start, count, worker in line["slices"])
        return Step(line["iteration"], line["attempt"], slices)
    version = line.get("rewound", line.get("initialised"))
    return None if version is None else Rewind(line["attempt"], version)


def read_lines(path: Path) -> Iterator[Any]:
    """The JSON lines of a file."""
    with path.open("rb") as file:
        yield from parse(file)


def parse(lines: Iterable[bytes]) -> Iterator[Any]:
    """JSON lines; those that a kill has left unfinished are passed over."""
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)
