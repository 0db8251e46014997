"""A worker's report of an iteration, and the record of it that is kept; values alone."""

import itertools
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from idl.costs import Costs
from idl.gradient_norms import StepNorms

_YEAR = 365.25 * 86_400  # seconds, of which no iteration takes more


@dataclass(frozen=True)
class Range:
    """The values that a field of a report may have: numbers from `least` to `most`, or a text."""

    least: float = 0
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's report at the end of an iteration; `ReportRequest` of the IDL has the same fields.

    Attributes:
        norms: The norms of the gradients of a step, this iteration's or that of the iteration before: of all
            contributions to it, or of the worker's own.
        communication_time: Seconds of the batch processing time in which gradients and parameters were
            transferred; None: not known.
        backward_time: Seconds of the batch processing time from the begin of the backward pass until its last
            gradient was ready to be summed over the workers, or pushed; None: not known, as the three below.
        other_buckets_time: Seconds in which any bucket but the last was ready, and not summed yet over the
            workers or, with a parameter server, written to all shards; others that were ready later count in.
        last_bucket_time: Seconds from the moment when the last bucket was ready, and all others were summed
            or written, until it was summed or, with a parameter server, answered by all shards; and there
            also those in which the worker waited for parameters to be transferred, before that pass.
    """

    iteration: Annotated[int, Range()]
    batch_processing_time: Annotated[float, Range(most=_YEAR)]  # seconds, waiting for others left out
    # Seconds for which the parameter server kept the worker waiting.
    waiting_time: Annotated[float, Range(most=_YEAR)] = 0.0
    cpu_usage: Annotated[float, Range(most=1)] = 0.0  # share of the worker's CPUs that others take, 0 to 1
    memory_usage: Annotated[float, Range(most=1)] = 0.0  # occupied share of the worker's memory, 0 to 1
    # Samples that have proved to be all that the worker can take.
    maximum: Annotated[int | None, Range(1)] = None
    # The attempt of the assignment that is finished; None: the present one.
    attempt: Annotated[int | None, Range()] = None
    # The first position of that assignment; None: the one that the worker was given last.
    start: Annotated[int | None, Range()] = None
    # Micro-batches that were computed at once, where fewer than assigned.
    at_once: Annotated[int | None, Range(1)] = None
    # A text that is the same for workers that use the same shards; None: not known.
    shards: Annotated[str | None, Range()] = None
    norms: Annotated[StepNorms | None, Range()] = None
    # The iteration for which the worker's own gradient had a NaN or an infinity; None: none is known.
    not_finite: Annotated[int | None, Range()] = None
    communication_time: Annotated[float | None, Range(most=_YEAR)] = None
    backward_time: Annotated[float | None, Range(most=_YEAR)] = None
    # Seconds of those until the first bucket of gradients was ready.
    first_bucket_time: Annotated[float | None, Range(most=_YEAR)] = None
    other_buckets_time: Annotated[float | None, Range(most=_YEAR)] = None
    last_bucket_time: Annotated[float | None, Range(most=_YEAR)] = None
    costs: Annotated[tuple[Costs, ...], Range()] = ()  # of samples that come next, in a job with costs


@dataclass(frozen=True)
class Shown:
    """The column for a measured value in tables of workers: on the page, in terminals and in reports."""

    title: str  # heading of the column, in lower case
    # Whether the worker's value is the median over the last iterations, or that of the last one.
    over: Literal["median", "last"] = "median"
    form: Literal["number", "percent", "seconds"] = "number"  # how the number is written


@dataclass(frozen=True)
class Measured:
    """The description of a measured quantity, a field of `WorkerRecord`.

    Attributes:
        spared: Whether the values are left out where all workers have the default: on the wire, and in memory
            and on disk in the last columns.
    """

    metric: str  # the quantity's name among the metrics, after "worker_"
    unit: str  # the quantity's unit
    meaning: str  # the metric's help text
    many: str = ""  # the name of the list of all workers' values; the field's name with an "s", if empty
    spared: bool = False
    # The column in tables; None where there is none, or where what is shown is computed from it.
    shown: Shown | None = None


class WorkerRecord(NamedTuple):
    """One worker's measurements of a complete iteration; policies observe those of its own slice alone.

    This is the table of measured quantities: a field that is added, here and in the IDL, is stored, sent, and
    shown among the metrics and, if it has `shown`, in tables. A field that `Report` has, too, has the
    value of the worker's last report.

    Attributes:
        communication_time: Seconds of the batch processing time in which gradients and parameters were
            transferred; NaN where that is not known.
        backward_time: Seconds of the batch processing time from the begin of the backward pass until its last
            gradient was ready to be summed over the workers, or pushed; NaN where that is not known, as the
            three below.
        other_buckets_time: Seconds in which any bucket but the last was ready, and not summed yet over the
            workers or, with a parameter server, written to all shards; others that were ready later count in.
        last_bucket_time: Seconds from the moment when the last bucket was ready, and all others were summed
            or written, until it was summed or, with a parameter server, answered by all shards; and there
            also those in which the worker waited for parameters to be transferred, before that pass.
    """

    # Samples, of all its parts together.
    batch_size: Annotated[
        int, Measured("batch_samples", "samples", "size of the worker's part of the last complete batch")
    ]
    # Seconds, waiting left out.
    batch_processing_time: Annotated[
        float, Measured("batch_processing_seconds", "seconds", "batch processing time of the worker's part")
    ]
    # Seconds at the manager's and the parameter server's barriers together.
    waiting_time: Annotated[
        float, Measured("waiting_seconds", "seconds", "waiting time of the worker for the others")
    ] = 0.0
    # Share of its CPUs that others took, 0 to 1.
    cpu_usage: Annotated[
        float,
        Measured(
            "cpu_ratio",
            "ratio",
            "share of the worker's CPUs that others take",
            shown=Shown("CPU taken", form="percent"),
        ),
    ] = 0.0
    # Share of its memory that was in use, 0 to 1.
    memory_usage: Annotated[
        float,
        Measured(
            "memory_ratio",
            "ratio",
            "share of the worker's memory that is in use",
            shown=Shown("memory", "last", "percent"),
        ),
    ] = 0.0
    # Samples per second, before the iteration; NaN where nothing was predicted.
    predicted_speed: Annotated[
        float,
        Measured("predicted_samples_per_second", "samples per second", "predicted speed of the worker"),
    ] = math.nan
    # Micro-batches that it computed at once.
    at_once: Annotated[
        int,
        Measured(
            "micro_batches_at_once",
            "micro-batches",
            "number of micro-batches that the worker computed at once in the last complete iteration",
            many="at_once",
            spared=True,
        ),
    ] = 1
    communication_time: Annotated[
        float,
        Measured(
            "communication_seconds",
            "seconds",
            "part of the worker's batch processing time in which gradients and parameters were transferred",
            spared=True,
        ),
    ] = math.nan
    backward_time: Annotated[
        float, Measured("backward_seconds", "seconds", "time of the worker's backward pass", spared=True)
    ] = math.nan
    # Seconds of those until the first bucket of gradients was ready.
    first_bucket_time: Annotated[
        float,
        Measured(
            "first_bucket_seconds",
            "seconds",
            "part of the worker's backward pass until its first bucket of gradients was ready",
            spared=True,
        ),
    ] = math.nan
    other_buckets_time: Annotated[
        float,
        Measured(
            "other_buckets_seconds",
            "seconds",
            "time in which buckets of the worker's gradients but the last were ready and not summed or sent",
            spared=True,
        ),
    ] = math.nan
    last_bucket_time: Annotated[
        float,
        Measured(
            "last_bucket_seconds",
            "seconds",
            "time in which the last bucket of the worker's gradients alone was ready and not summed or taken "
            "by the parameter server, and of the pull of parameters",
            spared=True,
        ),
    ] = math.nan
    # Of its samples, in samples of mean cost; NaN in a job without costs, or where they were not known.
    cost: Annotated[
        float,
        Measured(
            "batch_cost",
            "samples",
            "cost of the worker's part of the last complete batch, in samples of mean cost",
            spared=True,
        ),
    ] = math.nan

    @property
    def speed(self) -> float:
        """The speed in samples per second, of mean cost where costs are known; NaN without a sample."""
        done = self.batch_size if math.isnan(self.cost) else self.cost
        return done / self.batch_processing_time if done else math.nan


@dataclass(frozen=True)
class Column:
    """A field of `WorkerRecord` as a column of `IterationRecord.values`, 8 bytes for each worker."""

    name: str  # the field's name
    dtype: str  # NumPy's type of its numbers, little-endian
    form: str  # the type's letter in formats of the module `struct`
    default: bytes  # the field's default, as such a number; zeros where it has none
    measured: Measured  # the field's description

    @property
    def many(self) -> str:
        """The name of the list of all workers' values."""
        return self.measured.many or f"{self.name}s"


def _columns() -> Iterator[Column]:
    for name, hint in get_type_hints(WorkerRecord, include_extras=True).items():
        kind, measured = get_args(hint)
        form = "q" if kind is int else "d"
        default = struct.pack(f"<{form}", WorkerRecord._field_defaults.get(name, 0))
        yield Column(name, "<i8" if kind is int else "<f8", form, default, measured)


COLUMNS = tuple(_columns())
"""The columns of an iteration's record, in the order of the fields of `WorkerRecord`."""

_PLACES = {column.name: place for place, column in enumerate(COLUMNS)}


def spare_last(values: bytes, workers: int) -> bytes:
    """Return columns of numbers, of so many workers, without those of the last ones that may be spared."""
    for column in reversed(COLUMNS):
        default = column.default * workers
        if not column.measured.spared or not values.endswith(default):
            break
        values = values[: len(values) - len(default)]
    return values


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """A complete iteration, as it is held in memory, sent, stored and shown.

    Its workers' numbers are packed: as objects, the records of a large job would take hundreds of MiB, and
    the garbage collector's search through them would hold up barrier rounds.

    Attributes:
        duration: Seconds from the iteration's plan, or from the completion of the iteration before it if that
            came later, until it was complete.
        values: The workers' numbers as bytes, one of `COLUMNS` after the other, (workers,) each; of the last
            ones, those that may be spared are left out.
        norms: The norms of the gradients of a step, this iteration's or that of the iteration before; None
            where they are not known.
    """

    iteration: int  # the iteration's number
    epoch: int  # the epoch that its batch is a part of
    start: int  # the first position of the batch in the epoch
    total: int  # samples of the batch
    attempt: int  # number of times that the job had been rewound before
    duration: float
    workers: tuple[str, ...]  # names of the workers whose reports completed it
    values: bytes
    norms: StepNorms | None = None

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
        norms: StepNorms | None = None,
    ) -> "IterationRecord":
        """Make a record from its workers' parts, by name."""
        columns = zip(*parts.values(), strict=True)
        form = "<" + "".join(f"{len(parts)}{column.form}" for column in COLUMNS)
        values = spare_last(struct.pack(form, *itertools.chain(*columns)), len(parts))
        return cls(iteration, epoch, start, total, attempt, duration, tuple(parts), values, norms)

    def column(self, name: str) -> NDArray[Any]:
        """Return the values of a field of `WorkerRecord`, (workers,)."""
        place, workers = _PLACES[name], len(self.workers)
        column, offset = COLUMNS[place], 8 * workers * place
        if offset < len(self.values) or not workers:
            return np.frombuffer(self.values, column.dtype, workers, offset=offset)
        return np.frombuffer(column.default * workers, column.dtype)

    @property
    def batch_sizes(self) -> NDArray[np.int64]:
        """The samples that each worker has computed, (workers,)."""
        return self.column("batch_size")

    @property
    def batch_processing_times(self) -> NDArray[np.float64]:
        """The seconds for which each worker has computed, (workers,)."""
        return self.column("batch_processing_time")

    @property
    def waiting_times(self) -> NDArray[np.float64]:
        """The seconds for which each worker has waited for others, (workers,)."""
        return self.column("waiting_time")

    @property
    def predicted_speeds(self) -> NDArray[np.float64]:
        """The predicted speeds in samples per second, (workers,); NaN where nothing was predicted."""
        return self.column("predicted_speed")

    @property
    def speeds(self) -> NDArray[np.float64]:
        """The speeds in samples per second, (workers,); NaN where a worker had no sample, or took no time.

        Samples are of mean cost where costs are known.
        """
        sizes, costs, times = self.batch_sizes, self.column("cost"), self.batch_processing_times
        sizes = np.where(np.isnan(costs), sizes, costs)
        speeds = np.full(len(sizes), np.nan)
        np.divide(sizes, times, out=speeds, where=(sizes > 0) & (times > 0))
        return speeds

    @property
    def parts(self) -> dict[str, WorkerRecord]:
        """The workers' parts, by name."""
        columns = (self.column(column.name).tolist() for column in COLUMNS)
        return dict(zip(self.workers, map(WorkerRecord._make, zip(*columns, strict=True)), strict=True))

    def plain(self) -> dict[str, Any]:
        """Return the record's fields for JSON, `workers` as their parts by name, with None for NaN."""
        workers = {
            name: {key: None if value != value else value for key, value in part._asdict().items()}
            for name, part in sorted(self.parts.items())
        }
        return {
            "iteration": self.iteration,
            "epoch": self.epoch,
            "start": self.start,
            "total": self.total,
            "attempt": self.attempt,
            "duration": self.duration,
            "norms": asdict(self.norms) if self.norms else None,
            "workers": workers,
        }

    def named_as(self, other: "IterationRecord | None") -> "IterationRecord":
        """Return the record; if another one has the same workers, with that one's tuple of names."""
        if other is None or other.workers is self.workers or other.workers != self.workers:
            return self
        return replace(self, workers=other.workers)
