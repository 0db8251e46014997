"""What a worker and the BatchSizeManager say to each other, as values and as the wire has it.

It knows no connection and no state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import idl
from batchsize_manager.plan import Assignment, JobSpec
from batchsize_manager.rounding import Bounds
from batchsize_manager.synchronisation import Synchronisation
from rpc.errors import ProtocolError

_wire = idl.batchsize_manager

Resume = tuple[int, bytes] | tuple[int, bytes, int | None, int | None, int | None]
"""Where a job goes on: the iteration, what was learned, and as in the IDL."""


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
    """What a worker reports of an iteration; see `ReportRequest` in the IDL.

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


def join_request(
    identity: Any,
    spec: JobSpec,
    bounds: Bounds,
    resume: Resume | None,
    unreleasable: bool,
    device: str | None,
) -> Any:
    """See `worker.membership.Membership.join`."""
    return _wire.JoinRequest(
        identity=identity,
        job=_wire.JobSpec(
            dataset_size=spec.dataset_size,
            total_batch_size=spec.total_batch_size,
            seed=spec.seed,
            shuffle=spec.shuffle,
            drop_last=spec.drop_last,
        ),
        bounds=_wire.Bounds(minimum=bounds.minimum, maximum=bounds.maximum, granularity=bounds.granularity),
        resume=_resume(*resume) if resume else None,
        unreleasable=unreleasable or None,
        device=device,
        heartbeats=True,
    )


def _resume(
    iteration: int,
    learned: bytes,
    epoch: int | None = None,
    start: int | None = None,
    total_batch_size: int | None = None,
) -> Any:
    return _wire.Resume(
        iteration=iteration,
        epoch=epoch,
        start=start,
        total_batch_size=total_batch_size,
        learned_bytes=len(learned) or None,
    )


def report_request(identity: Any, finished: Finished, maximum: int | None) -> Any:
    """A report that says what the manager has still to learn of this worker's `maximum`."""
    return _wire.ReportRequest(
        identity=identity,
        iteration=finished.iteration,
        batch_processing_time=finished.batch_processing_time(),
        waiting_time=finished.waiting_time,
        cpu_usage=finished.cpu_usage,
        memory_usage=finished.memory_usage,
        maximum=maximum,
        attempt=finished.attempt,
        start=finished.start,
    )


def read_assignment(wire: Any) -> Assignment:
    """An assignment, from the wire."""
    return Assignment(
        wire.iteration,
        wire.epoch,
        wire.start,
        wire.count,
        wire.total,
        wire.attempt or 0,
        wire.batch_start,
    )


def read_synchronisation(wire: Any) -> Synchronisation:
    """How the workers wait for each other, from the wire.

    Raises:
        ProtocolError: In a way that this worker does not know.
    """
    if wire is None:
        return Synchronisation()
    try:
        return Synchronisation(wire.mode, wire.staleness, wire.replicas_to_aggregate)
    except ValueError as error:
        raise ProtocolError(f"the manager has a mode that this worker lacks: {error}") from error
