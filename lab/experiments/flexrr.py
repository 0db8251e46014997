"""FlexRR's work stealing, emulated as LB-BSP's authors did it (section 5.3): one sample at a time.

Each worker takes its samples one by one. A hundred times an iteration it checks how far the others are; from
one that is behind by more than the threshold it takes samples over. All workers are each other's helpers. The
numbers are those that FlexRR (Harlap et al., 2016) suggests. The workers of one machine meet on a board, a
small file that they share; in FlexRR they send each other messages, which takes longer.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

CHECKS = 100  # checks of the others' progress in an iteration
THRESHOLD = 0.2  # share of its load by which a worker must be behind to be helped
HANDOVER = 0.025  # share of a worker's load that is taken over at once

_FIELDS = 4  # of a worker's record: iteration, next position, end, size of the slice
_RECORD = 8 * _FIELDS  # bytes


class Board:
    """Board of what each worker has left of its slice, from which the others may take."""

    def __init__(self, path: Path, workers: int) -> None:
        self.workers = workers
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self._file, workers * _RECORD)
        self._records = np.memmap(path, np.int64, "r+", shape=(workers, _FIELDS))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def begin(self, worker: int, iteration: int, start: int, count: int) -> None:
        """Begin a worker's slice; iterations count from 1, since 0 is a record not written yet."""
        with self._locked(worker):
            self._records[worker] = iteration, start, start + count, count

    def take(self, worker: int, count: int) -> range:
        """Take the next positions of the worker's own slice, at most `count`; none once nothing is left."""
        with self._locked(worker):
            _, position, end, _ = self._records[worker].tolist()
            taken = range(position, min(position + count, end))
            self._records[worker, 1] = taken.stop
        return taken

    def steal(self, victim: int, iteration: int, progress: float) -> range:
        """Take positions over from the end of another worker's slice in this iteration, if it is behind.

        `progress` is that of the worker that takes, from 0 to 1.
        """
        with self._locked(victim):
            current, position, end, size = self._records[victim].tolist()
            if current != iteration or progress - (1 - (end - position) / size) <= THRESHOLD:
                return range(0)
            count = min(max(1, round(HANDOVER * size)), end - position)
            self._records[victim, 2] = end - count
        return range(end - count, end)

    @contextmanager
    def _locked(self, worker: int) -> Iterator[None]:
        """Keep the other processes from the worker's record, which is written byte by byte."""
        record = _RECORD, worker * _RECORD
        fcntl.lockf(self._file, fcntl.LOCK_EX, *record)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, *record)


def positions(board: Board, worker: int, iteration: int, start: int, count: int) -> Iterator[int]:
    """Yield the positions that a worker processes in an iteration: its own, then those that it takes over.

    Over all workers, each position of their slices comes exactly once. Iterations count from 0; the own slice
    has `count` positions, at least 1.
    """
    board.begin(worker, iteration + 1, start, count)
    chunk = max(1, count // CHECKS)
    others = [(worker + offset) % board.workers for offset in range(1, board.workers)]
    done = 0
    while True:
        own = board.take(worker, chunk)
        yield from own
        done += len(own)
        taken = 0
        for victim in others:
            stolen = board.steal(victim, iteration + 1, min(1.0, done / count))
            yield from stolen
            taken += len(stolen)
        if not own and not taken:
            return
