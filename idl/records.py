"""What workers report of an iteration, and what is kept of it; values alone."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says at the end of an iteration; see `ReportRequest` in the IDL."""

    iteration: int
    batch_processing_time: float  # seconds
    waiting_time: float = 0.0  # seconds, in the parameter server
    cpu_usage: float = 0.0
    memory_usage: float = 0.0
    maximum: int | None = None  # samples that have proved to be all that the worker can take
    attempt: int | None = None  # of the assignment that is finished; None: the present one
    start: int | None = None  # likewise; None: the last that was given


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker's part in a finished iteration; times in seconds, speeds in samples per second."""

    batch_size: int
    batch_processing_time: float
    waiting_time: float
    cpu_usage: float
    memory_usage: float
    predicted_speed: float | None


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """A finished iteration."""

    iteration: int
    epoch: int
    total: int
    duration: float  # seconds until it was complete, from its release or, if later, the one before it
    workers: Mapping[str, WorkerRecord]
    attempt: int = 0  # how often the job had been rewound before
    start: int = 0  # the first position of the batch
