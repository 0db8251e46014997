"""The records of a job's latest complete iterations, as many as fit."""

import itertools
import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

from idl.noise import NoiseEstimate
from idl.records import IterationRecord

_RECORDS = 50_000  # workers times iterations; the oldest go first
_TYPICAL = 20  # iterations that a typical duration is taken from


class History:
    """Records by iteration, ascending; those that were completed while the manager was away are missing.

    Attributes:
        noise: What the norms in the records say of the gradient noise; also those that are forgotten.
    """

    def __init__(self) -> None:
        self.noise = NoiseEstimate()
        self._records: deque[IterationRecord] = deque()
        self._size = 0

    def add(self, record: IterationRecord) -> None:
        """Keep a complete iteration; who stays shares the names with the one before."""
        self._records.append(record.named_as(self.last))
        self.noise = self.noise.observe_step(record.norms)
        self._size += len(record.workers)
        while self._size > _RECORDS and len(self._records) > 1:
            self._size -= len(self._records.popleft().workers)

    def forget_from(self, iteration: int) -> None:
        """Forget the records from an iteration on, which the job goes back to."""
        while self._records and self._records[-1].iteration >= iteration:
            self._size -= len(self._records.pop().workers)

    def page(self, first: int, limit: int) -> list[IterationRecord]:
        """Return the records from an iteration on, oldest first, `limit` at most."""
        skip = bisect_left(self._records, first, key=lambda record: record.iteration)
        return list(itertools.islice(self._records, skip, skip + limit))

    def latest(self, limit: int) -> list[IterationRecord]:
        """Return the last records, oldest first, `limit` at most."""
        return list(itertools.islice(reversed(self._records), limit))[::-1]

    @property
    def last(self) -> IterationRecord | None:
        """The last record, if there is one; from any thread."""
        try:
            return self._records[-1]
        except IndexError:
            return None

    @property
    def typical_duration(self) -> float:
        """The median duration of the last iterations in seconds; 0 without any."""
        latest = itertools.islice(reversed(self._records), _TYPICAL)
        return statistics.median([record.duration for record in latest] or [0.0])


def surviving_records(records: Iterable[IterationRecord]) -> list[IterationRecord]:
    """Return the records of iterations that no later attempt has gone back over, of all attempts.

    An iteration of a later attempt makes void whatever an earlier attempt did from there on.
    """
    surviving: list[IterationRecord] = []
    for record in sorted(records, key=lambda record: (record.attempt, record.iteration)):
        while surviving and surviving[-1].iteration >= record.iteration:
            surviving.pop()
        surviving.append(record)
    return surviving
