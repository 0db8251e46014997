"""What the wire says as the values that jobs know, and back; what comes in is checked. No job, no socket."""

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import idl
from batchsize_manager.plan import Assignment, JobSpec
from batchsize_manager.records import IterationRecord, Report
from batchsize_manager.rounding import Bounds
from batchsize_manager.synchronisation import Synchronisation
from rpc import check
from rpc.errors import InvalidRequestError

_wire = idl.batchsize_manager

_MAX_GRANULARITY = 2**48  # samples; all members' together fit into 64 bits


def read(struct: Any, into: type) -> Any:
    """A Thrift struct as the dataclass of ours that has the same fields and checks them.

    Raises:
        InvalidRequestError: A field is missing or out of its range.
    """
    values = {name: getattr(struct, name, None) for name in into.__dataclass_fields__}  # type: ignore[attr-defined]
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise InvalidRequestError(f"{into.__name__}: {missing[0]} is missing or not of its type")
    try:
        return into(**values)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


def differences(spec: JobSpec, other: JobSpec) -> str:
    """What a spec has otherwise than another, in words."""
    names = [field.name for field in fields(spec) if getattr(spec, field.name) != getattr(other, field.name)]
    return ", ".join(f"{name} {getattr(spec, name)}" for name in names)


def read_bounds(struct: Any) -> Bounds:
    """A worker's `Bounds`.

    Raises:
        InvalidRequestError: A field is missing or out of its range.
    """
    bounds: Bounds = read(struct, Bounds)
    check.integer("granularity", bounds.granularity, 1, _MAX_GRANULARITY)
    return bounds


def read_report(request: Any) -> Report:
    """A `ReportRequest`.

    Raises:
        InvalidRequestError: A field is missing or out of its range.
    """
    return Report(
        check.integer("iteration", request.iteration, 0),
        check.number("batch_processing_time", request.batch_processing_time, 0, math.inf),
        check.number("waiting_time", request.waiting_time, 0, math.inf),
        check.number("cpu_usage", request.cpu_usage, 0, 1),
        check.number("memory_usage", request.memory_usage, 0, 1),
        _optional("maximum", request.maximum, 1),
        _optional("attempt", request.attempt, 0),
        _optional("start", request.start, 0),
    )


def read_position(resume: Any, dataset_size: int) -> tuple[int, int] | None:
    """Where the batch of the iteration begins that a job goes on from, if `Resume` says so.

    Args:
        resume: The wire's, or None.
        dataset_size: Samples; the batch begins before their end.

    Raises:
        InvalidRequestError: A field is missing or out of its range.
    """
    if resume is None or (resume.epoch is None and resume.start is None):
        return None
    epoch = check.integer("resume.epoch", resume.epoch, 0)
    return epoch, check.integer("resume.start", resume.start, 0, dataset_size - 1)


def read_batch_size(resume: Any, dataset_size: int) -> int | None:
    """The samples of a whole batch that a job goes on with, if `Resume` says so; see `read_position`."""
    if resume is None or resume.total_batch_size is None:
        return None
    return check.integer("resume.total_batch_size", resume.total_batch_size, 1, dataset_size)


def told(synchronisation: Synchronisation) -> Any:
    """What a worker that joins is told: nothing in bsp, so that it need not know of modes."""
    if synchronisation.mode == "bsp":
        return None
    return idl.common.Synchronisation(
        synchronisation.mode, synchronisation.staleness, synchronisation.replicas_to_aggregate
    )


def assignment(value: Assignment) -> Any:
    """An assignment for the wire."""
    return idl.common.Assignment(
        value.iteration,
        value.epoch,
        value.start,
        value.count,
        value.total,
        value.attempt or None,
        value.batch_start,
    )


def lost(value: Assignment) -> Any:
    """A slice whose worker has gone, for the wire."""
    return _wire.Lost(value.iteration, value.start, value.count, value.total)


def history(
    members: Sequence[str], records: Sequence[IterationRecord], policy: str, events: Sequence[str], run: str
) -> Any:
    """The answer to `history`."""
    return _wire.History(
        members=list(members),
        iterations=[_record(record) for record in records],
        policy=policy,
        events=list(events),
        run=run,
    )


def _record(record: IterationRecord) -> Any:
    workers = [
        _wire.WorkerRecord(
            worker=name,
            batch_size=part.batch_size,
            batch_processing_time=part.batch_processing_time,
            waiting_time=part.waiting_time,
            cpu_usage=part.cpu_usage,
            memory_usage=part.memory_usage,
            predicted_speed=part.predicted_speed,
        )
        for name, part in record.workers.items()
    ]
    return _wire.IterationRecord(
        iteration=record.iteration,
        epoch=record.epoch,
        total=record.total,
        duration=record.duration,
        workers=workers,
    )


def _optional(name: str, value: Any, low: int) -> int | None:
    return None if value is None else check.integer(name, value, low)
