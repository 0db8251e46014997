"""Records of iterations with the workers' figures in columns, from the wire or from a manager's state."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.job.packed import PackedRecord

_COLUMNS = 5  # of doubles, in a packed record


@dataclass(frozen=True, slots=True)
class Iteration:
    """A complete iteration. All arrays are (workers,); times in seconds, speeds in samples per second.

    Attributes:
        iteration: Its number.
        epoch: Of which its batch is a part.
        total: Samples of the batch.
        attempt: How often the job had been rewound before it was completed.
        duration: From its release, or from the completion of the one before it if that came later.
        workers: Names.
        batch_sizes: Samples, int64.
        batch_processing_times: Waiting left out.
        waiting_times: At the manager's and the parameter server's barriers together.
        cpu_usages: Share of a worker's CPUs that others took, 0 to 1.
        memory_usages: Share of its memory that was in use, 0 to 1.
        predicted_speeds: Before the iteration; NaN where nothing was predicted.
    """

    iteration: int
    epoch: int
    total: int
    attempt: int
    duration: float
    workers: tuple[str, ...]
    batch_sizes: NDArray[np.int64]
    batch_processing_times: NDArray[np.float64]
    waiting_times: NDArray[np.float64]
    cpu_usages: NDArray[np.float64]
    memory_usages: NDArray[np.float64]
    predicted_speeds: NDArray[np.float64]

    @property
    def speeds(self) -> NDArray[np.float64]:
        """Samples per second, (workers,); NaN for a worker that had no sample."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.batch_sizes > 0, self.batch_sizes / self.batch_processing_times, np.nan)


def from_wire(reply: Any) -> list[Iteration]:
    """The iterations of a `RecordsReply`."""
    names = [tuple(workers) for workers in reply.names]
    return [_unpack(packed, packed.values, names[packed.names]) for packed in reply.iterations]


def from_packed(packed: PackedRecord) -> Iteration:
    """A record as a manager's state has it."""
    return _unpack(packed.record, packed.values, packed.names)


def without_idle(iteration: Iteration) -> Iteration:
    """The same without the workers that had no sample in it."""
    busy = iteration.batch_sizes > 0
    if busy.all():
        return iteration
    return replace(
        iteration,
        workers=tuple(name for name, there in zip(iteration.workers, busy, strict=True) if there),
        batch_sizes=iteration.batch_sizes[busy],
        batch_processing_times=iteration.batch_processing_times[busy],
        waiting_times=iteration.waiting_times[busy],
        cpu_usages=iteration.cpu_usages[busy],
        memory_usages=iteration.memory_usages[busy],
        predicted_speeds=iteration.predicted_speeds[busy],
    )


def _unpack(record: Any, values: bytes, workers: tuple[str, ...]) -> Iteration:
    """An iteration of what is known of it as a whole, and its workers' numbers as `PackedRecord` has them."""
    count = len(workers)
    sizes = np.frombuffer(values, dtype="<i8", count=count)
    columns = np.frombuffer(values, dtype="<f8", offset=8 * count).reshape(_COLUMNS, count)
    return Iteration(
        record.iteration,
        record.epoch,
        record.total,
        record.attempt,
        record.duration,
        workers,
        sizes.astype(np.int64),
        *columns.astype(np.float64),
    )
