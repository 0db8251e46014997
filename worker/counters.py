"""Counters of a session, and of the time that each phase of its iterations took, for metrics and traces.

An iteration begins here with the pull of its parameters; load, compute, push and report follow, and the
report ends with the answer, when all other workers have reported. This module knows no wire and no session.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from idl.plan import Assignment
from rpc.counters import Histogram

PHASES = ("pull", "load", "compute", "push", "report")

# Called with each phase that has ended: assignment, name, begin and end (monotonic clock, in nanoseconds).
PhaseObserver = Callable[[Assignment, str, int, int], None]


class SessionTally:
    """Counters of a session; see `rpc.counters`.

    Attributes:
        iterations: Iterations that were finished, pieces left out.
        samples: Samples of the iterations and of the pieces.
        pieces: Parts of iterations that had been assigned to another worker before.
        rewinds: Recoveries that this worker took part in.
    """

    def __init__(self) -> None:
        self.iterations = self.samples = self.pieces = self.rewinds = 0
        self.processing = Histogram()  # batch processing times in seconds, as they were reported
        self.waiting = 0.0  # seconds for which the shards held parameters back
        self.seconds = dict.fromkeys(PHASES, 0.0)  # seconds in each phase, by name
        self.observer: PhaseObserver | None = None  # called with each phase, if it is set
        self._phase_ended_at = time.monotonic_ns()  # when the last phase ended
        self._loaded: Assignment | None = None  # whose samples the last phase has loaded

    @contextlib.contextmanager
    def phase(self, name: str, assignment: Assignment | None) -> Iterator[None]:
        """Count the time of a `with` block as a phase of an iteration; not if the block raises an error.

        Between two micro-batches that are loaded, the first is computed.
        """
        if name == "load" and assignment is not None and assignment is self._loaded:
            self.end_compute(assignment)
        began = time.monotonic_ns()
        yield
        self._end(name, assignment, began)

    def end_compute(self, assignment: Assignment) -> None:
        """Count the time since the last phase as computing, since the gradient is complete."""
        self._end("compute", assignment, self._phase_ended_at)

    def count_processing(self, seconds: float, count: int) -> float:
        """Count the batch processing time of `count` samples, and return it."""
        if count:
            self.processing.add(seconds)
        return seconds

    def _end(self, name: str, assignment: Assignment | None, began: int) -> None:
        self._phase_ended_at = now = time.monotonic_ns()
        self._loaded = assignment if name == "load" else None
        self.seconds[name] += (now - began) / 1e9
        if self.observer is not None and assignment is not None:
            self.observer(assignment, name, began, now)
