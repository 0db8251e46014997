"""Values that a worker and the BatchSizeManager exchange."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from idl.records import Report
from idl.synchronisation import Synchronisation


@dataclass(frozen=True)
class Joined:
    """The answer to `join`, without the first assignments.

    Attributes:
        run: The run's random name, drawn when the job was created; part of its name at the parameter server.
        synchronisation: How the workers wait for each other.
        lookahead: Iterations that are planned ahead of the reports.
        lost: Slices that were lost before this worker joined, as `Lost` of batchsize_manager.thrift.
    """

    run: str
    synchronisation: Synchronisation
    lookahead: int
    lost: Sequence[Any]


@dataclass(frozen=True)
class Finished:
    """A finished iteration of a worker, to be reported.

    Attributes:
        iteration: The iteration's number.
        batch_processing_time: Returns the seconds; called when the report is sent, since a GPU's time may be
            known late.
        waiting_time: Seconds for which the parameter server kept the worker waiting.
        cpu_usage: Share of the worker's CPU capacity that others take, 0 to 1.
        memory_usage: Occupied share of the memory, 0 to 1.
        maximum: Most samples that this worker has proved able to take, or None.
        attempt: The attempt that the iteration was finished in.
        start: First position of the slice; None for the slice assigned last.
        at_once: Micro-batches that were computed at once, where fewer than assigned, or None.
        shards: A text that is the same for workers that use the same shards; None without a parameter server.
    """

    iteration: int
    batch_processing_time: Callable[[], float]
    waiting_time: float
    cpu_usage: float
    memory_usage: float
    maximum: int | None
    attempt: int = 0
    start: int | None = None
    at_once: int | None = None
    shards: str | None = None

    def report(self, maximum: int | None) -> Report:
        """Make the report, with the `maximum` that the manager has not learnt yet."""
        return Report(
            self.iteration,
            self.batch_processing_time(),
            self.waiting_time,
            self.cpu_usage,
            self.memory_usage,
            maximum,
            self.attempt,
            self.start,
            self.at_once,
            self.shards,
        )
