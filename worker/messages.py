"""What a worker and the BatchSizeManager tell each other, as values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from idl.records import Report
from idl.synchronisation import Synchronisation


@dataclass(frozen=True)
class Joined:
    """What the answer to `join` says beside the first assignments.

    Attributes:
        run: Drawn when the job was created; the job's name at the parameter server has it.
        synchronisation: How the workers wait for each other.
        lookahead: Iterations that are planned ahead of the reports.
        lost: Slices that were lost before this worker came, as the wire has them.
    """

    run: str
    synchronisation: Synchronisation
    lookahead: int
    lost: Sequence[Any]


@dataclass(frozen=True)
class Finished:
    """An iteration that a worker has finished, to be reported.

    Attributes:
        iteration: Which one.
        batch_processing_time: Gives the seconds; called by who reports, since a GPU's time may be known late.
        waiting_time: Seconds in the parameter server.
        cpu_usage: 0 to 1.
        memory_usage: 0 to 1.
        maximum: Samples that have proved to be all that this worker can take, or None.
        attempt: In which that was.
        start: First position of the slice; None for the last that was given.
    """

    iteration: int
    batch_processing_time: Callable[[], float]
    waiting_time: float
    cpu_usage: float
    memory_usage: float
    maximum: int | None
    attempt: int = 0
    start: int | None = None

    def report(self, maximum: int | None) -> Report:
        """The report, with what the manager has still to learn of this worker's `maximum`."""
        return Report(
            self.iteration,
            self.batch_processing_time(),
            self.waiting_time,
            self.cpu_usage,
            self.memory_usage,
            maximum,
            self.attempt,
            self.start,
        )
