"""An iteration's record with its workers packed: a number takes eight bytes, and the collector sees none.

As objects, the records of a large job would take hundreds of MiB, and the garbage collector's search through
them would hold up barrier rounds.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

from idl.records import IterationRecord, WorkerRecord

_NOBODY: Mapping[str, WorkerRecord] = {}
_NUMBERS = 5  # doubles of a worker's record


@dataclass(frozen=True, slots=True)
class PackedRecord:
    """What `pack` makes.

    Attributes:
        record: Without its workers.
        names: Of the workers.
        values: Little-endian: the batch sizes, (workers,) of i64, then (5, workers) of double; NaN: no
            predicted speed.
    """

    record: IterationRecord
    names: tuple[str, ...]
    values: bytes

    def unpack(self) -> IterationRecord:
        """The record as it was."""
        count = len(self.names)
        values = struct.unpack(_format(count), self.values)
        columns = [values[i * count : (i + 1) * count] for i in range(1 + _NUMBERS)]
        predicted = [None if math.isnan(speed) else speed for speed in columns.pop()]
        workers = map(WorkerRecord, *columns, predicted)
        return replace(self.record, workers=dict(zip(self.names, workers, strict=True)))


def pack(record: IterationRecord, previous: PackedRecord | None) -> PackedRecord:
    """Pack a record.

    Args:
        record: All of it.
        previous: The one before it, which it shares the names with while nobody comes or goes.
    """
    names = tuple(record.workers)
    if previous is not None and previous.names == names:
        names = previous.names
    workers = record.workers.values()
    values = struct.pack(
        _format(len(names)),
        *(worker.batch_size for worker in workers),
        *(worker.batch_processing_time for worker in workers),
        *(worker.waiting_time for worker in workers),
        *(worker.cpu_usage for worker in workers),
        *(worker.memory_usage for worker in workers),
        *(math.nan if worker.predicted_speed is None else worker.predicted_speed for worker in workers),
    )
    return PackedRecord(replace(record, workers=_NOBODY), names, values)


def _format(workers: int) -> str:
    return f"<{workers}q{_NUMBERS * workers}d"
