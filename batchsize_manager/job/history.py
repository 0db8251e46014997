"""The records of a job's latest complete iterations, as many as a fixed limit of memory allows."""

import itertools
import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

from idl.noise_estimate import NoiseEstimate
from idl.records import IterationRecord

_RECORDS = 50_000  # workers times iterations; beyond that, the oldest records are dropped
_TYPICAL = 20  # latest iterations whose median duration is the typical one


class History:
    """Records of complete iterations, ascending; a restart of the manager may leave a gap."""

    def __init__(self) -> None:
        # The estimate of the gradient noise from the norms in all records so far, dropped ones included.
        self.noise = NoiseEstimate()
        self._records: deque[IterationRecord] = deque()
        self._size = 0

    def add(self, record: IterationRecord) -> None:
        """Add an iteration's record, which shares the tuple of names with the last one if these are equal."""
        self._records.append(record.named_as(self.last))
        self.noise = self.noise.observe_step(record.norms)
        self._size += len(record.workers)
        while self._size > _RECORDS and len(self._records) > 1:
            self._size -= len(self._records.popleft().workers)

    def forget_from(self, iteration: int) -> None:
        """Drop the records of an iteration and all later ones, when the job goes back to it."""
        while self._records and self._records[-1].iteration >= iteration:
            self._size -= len(self._records.pop().workers)

    def page(self, first: int, limit: int) -> list[IterationRecord]:
        """Return at most `limit` records of iteration `first` and later, oldest first."""
        skip = bisect_left(self._records, first, key=lambda record: record.iteration)
        return list(itertools.islice(self._records, skip, skip + limit))

    def latest(self, limit: int) -> list[IterationRecord]:
        """Return the latest records, at most `limit`, oldest first."""
        return list(itertools.islice(reversed(self._records), limit))[::-1]

    @property
    def last(self) -> IterationRecord | None:
        """The last record, or None; any thread may ask for it."""
        try:
            return self._records[-1]
        except IndexError:
            return None

    @property
    def typical_duration(self) -> float:
        """The median duration of the last iterations in seconds; 0 without any."""
        latest = itertools.islice(reversed(self._records), _TYPICAL)
        return statistics.median([record.duration for record in latest] or [0.0])


def typical_speeds(records: Iterable[IterationRecord]) -> dict[str, float]:
    """Return the median speed of each worker that had samples in these iterations, in samples per second."""
    speeds: dict[str, list[float]] = {}
    for record in records:
        for worker, speed in zip(record.workers, record.speeds.tolist(), strict=True):
            if speed == speed:  # not NaN: it had samples
                speeds.setdefault(worker, []).append(speed)
    return {worker: statistics.median(own) for worker, own in speeds.items()}


def surviving_records(records: Iterable[IterationRecord]) -> list[IterationRecord]:
    """Return those of all attempts' records that count, ascending by iteration.

    A record of a later attempt makes void all earlier attempts' records of its iteration and later ones.
    """
    surviving: list[IterationRecord] = []
    for record in sorted(records, key=lambda record: (record.attempt, record.iteration)):
        while surviving and surviving[-1].iteration >= record.iteration:
            surviving.pop()
        surviving.append(record)
    return surviving
