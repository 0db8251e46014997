"""Counts of what a session has done, and how its iterations' time was spent, for metrics and traces.

An iteration, as it is told of here, begins with the pull of its parameters: load, compute, push and report
follow, and the report ends with the answer, when all others have reported. It knows no wire and no session.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from idl.plan import Assignment
from rpc.counters import Histogram

PHASES = ("pull", "load", "compute", "push", "report")

# Told of a phase that has ended: whose, which, and its begin and end on the monotonic clock in nanoseconds.
PhaseObserver = Callable[[Assignment, str, int, int], None]


class SessionTally:
    """What a session has done; see `rpc.counters`.

    Attributes:
        iterations: That were finished, pieces left out.
        samples: Of them and of pieces.
        pieces: Parts of iterations that were another worker's.
        rewinds: Recoveries that this worker went through.
        processing: Batch processing times in seconds, as they were reported.
        waiting: Seconds for which the shards held parameters back.
        limit: Samples that this worker takes at most.
        seconds: In each phase.
        observer: Told of each phase, if it is set.
    """

    def __init__(self, limit: int) -> None:
        self.iterations = self.samples = self.pieces = self.rewinds = 0
        self.processing = Histogram()
        self.waiting = 0.0
        self.limit = limit
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.observer: PhaseObserver | None = None
        self._free_since = time.monotonic_ns()  # when the last phase ended

    @contextlib.contextmanager
    def phase(self, name: str, assignment: Assignment | None) -> Iterator[None]:
        """What is done within is a phase of the assignment's iteration; nothing is counted if that fails."""
        began = time.monotonic_ns()
        yield
        self._end(name, assignment, began)

    def computed(self, assignment: Assignment) -> None:
        """The gradient is there: what has passed since the last phase was computing."""
        self._end("compute", assignment, self._free_since)

    def processed(self, seconds: float, count: int) -> float:
        """Count the batch processing time of so many samples, and return it."""
        if count:
            self.processing.add(seconds)
        return seconds

    def _end(self, name: str, assignment: Assignment | None, began: int) -> None:
        self._free_since = now = time.monotonic_ns()
        self.seconds[name] += (now - began) / 1e9
        if self.observer is not None and assignment is not None:
            self.observer(assignment, name, began, now)
