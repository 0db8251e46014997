"""A worker's report of an iteration, and the record of it that is kept; values alone."""

import itertools
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's report at the end of an iteration; see `ReportRequest` in the IDL."""

    iteration: int
    batch_processing_time: float  # seconds
    waiting_time: float = 0.0  # seconds, in the parameter server
    cpu_usage: float = 0.0
    memory_usage: float = 0.0
    maximum: int | None = None  # samples that have proved to be all that the worker can take
    attempt: int | None = None  # of the assignment that is finished; None: the present one
    start: int | None = None  # likewise; None: the last that was given
    at_once: int | None = None  # micro-batches that were computed at once, where fewer than assigned
    shards: str | None = None  # the same for workers that use the same shards; None: not known


class WorkerRecord(NamedTuple):
    """One worker's part in a complete iteration; policies observe that of each worker's own slice.

    Attributes:
        batch_size: Samples, of all its parts together.
        batch_processing_time: Seconds, waiting left out.
        waiting_time: Seconds at the manager's and the parameter server's barriers together.
        cpu_usage: Share of its CPUs that others took, 0 to 1.
        memory_usage: Share of its memory that was in use, 0 to 1.
        predicted_speed: Samples per second, before the iteration; NaN where nothing was predicted.
        at_once: Micro-batches that it computed at once.
    """

    batch_size: int
    batch_processing_time: float
    waiting_time: float = 0.0
    cpu_usage: float = 0.0
    memory_usage: float = 0.0
    predicted_speed: float = math.nan
    at_once: int = 1

    @property
    def speed(self) -> float:
        """The speed in samples per second; NaN where there was no sample."""
        return self.batch_size / self.batch_processing_time if self.batch_size else math.nan


_NUMBERS = len(WorkerRecord._fields) - 2  # of a worker, between its batch size and `at_once`


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """A complete iteration: the one value that is kept, sent, stored and looked at.

    Its workers' numbers are packed: as objects, the records of a large job would take hundreds of MiB, and
    the garbage collector's search through them would hold up barrier rounds.

    Attributes:
        iteration: Its number.
        epoch: The epoch that its batch is a part of.
        start: The first position of the batch in the epoch.
        total: Samples of the batch.
        attempt: Number of times that the job had been rewound before.
        duration: Seconds from its release, or from the completion of the one before it if that came later,
            until it was complete.
        workers: Names of the workers whose reports completed it.
        values: Their numbers, column by column, little-endian: the batch sizes, (workers,) of i64, then the
            other fields of `WorkerRecord`, (5, workers) of double, and `at_once`, (workers,) of i64.
    """

    iteration: int
    epoch: int
    start: int
    total: int
    attempt: int
    duration: float
    workers: tuple[str, ...]
    values: bytes

    @classmethod
    def of(
        cls,
        iteration: int,
        epoch: int,
        total: int,
        duration: float,
        parts: Mapping[str, WorkerRecord],
        attempt: int = 0,
        start: int = 0,
    ) -> "IterationRecord":
        """Make a record from its workers' parts, by name."""
        columns = zip(*parts.values(), strict=True)
        form = f"<{len(parts)}q{_NUMBERS * len(parts)}d{len(parts)}q"
        values = struct.pack(form, *itertools.chain(*columns))
        return cls(iteration, epoch, start, total, attempt, duration, tuple(parts), values)

    @property
    def batch_sizes(self) -> NDArray[np.int64]:
        """Samples, (workers,)."""
        return np.frombuffer(self.values, "<i8", len(self.workers))

    @property
    def batch_processing_times(self) -> NDArray[np.float64]:
        """Seconds, (workers,)."""
        return self._numbers(0)

    @property
    def waiting_times(self) -> NDArray[np.float64]:
        """Seconds, (workers,)."""
        return self._numbers(1)

    @property
    def cpu_usages(self) -> NDArray[np.float64]:
        """Shares, (workers,)."""
        return self._numbers(2)

    @property
    def memory_usages(self) -> NDArray[np.float64]:
        """Shares, (workers,)."""
        return self._numbers(3)

    @property
    def predicted_speeds(self) -> NDArray[np.float64]:
        """Samples per second, (workers,); NaN where nothing was predicted."""
        return self._numbers(4)

    @property
    def at_once(self) -> NDArray[np.int64]:
        """Micro-batches that were computed at once, (workers,)."""
        workers = len(self.workers)
        return np.frombuffer(self.values, "<i8", workers, offset=8 * workers * (1 + _NUMBERS))

    @property
    def speeds(self) -> NDArray[np.float64]:
        """Samples per second, (workers,); NaN where a worker had no sample, or took no time."""
        sizes, times = self.batch_sizes, self.batch_processing_times
        speeds = np.full(len(sizes), np.nan)
        np.divide(sizes, times, out=speeds, where=(sizes > 0) & (times > 0))
        return speeds

    @property
    def parts(self) -> dict[str, WorkerRecord]:
        """The workers' parts, by name."""
        columns = (self.batch_sizes, *map(self._numbers, range(_NUMBERS)), self.at_once)
        parts = map(WorkerRecord._make, zip(*(column.tolist() for column in columns), strict=True))
        return dict(zip(self.workers, parts, strict=True))

    def plain(self) -> dict[str, Any]:
        """The record as JSON has it: its fields, `workers` by name with their parts; None for NaN."""
        workers = {
            name: part._asdict()
            | {"predicted_speed": None if math.isnan(part.predicted_speed) else part.predicted_speed}
            for name, part in sorted(self.parts.items())
        }
        return {
            "iteration": self.iteration,
            "epoch": self.epoch,
            "start": self.start,
            "total": self.total,
            "attempt": self.attempt,
            "duration": self.duration,
            "workers": workers,
        }

    def named_as(self, other: "IterationRecord | None") -> "IterationRecord":
        """The same record; it shares the names with another one that has the same workers."""
        if other is None or other.workers is self.workers or other.workers != self.workers:
            return self
        return replace(self, workers=other.workers)

    def _numbers(self, column: int) -> NDArray[np.float64]:
        workers = len(self.workers)
        return np.frombuffer(self.values, "<f8", workers, offset=8 * workers * (1 + column))
