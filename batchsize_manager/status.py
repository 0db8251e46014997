"""What those who look at jobs are told: summaries, members, events, records, as they go over the wire."""

import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import idl
from batchsize_manager.hosted_job import HostedJob
from batchsize_manager.job.packed import PackedRecord
from idl.translation import wire_bounds, wire_spec

_wire = idl.batchsize_manager

_RECORDS_BYTES = 2**20  # of one answer


def summary(hosted: HostedJob) -> Any:
    """A job as it stands."""
    job = hosted.job
    return _wire.JobSummary(
        job=hosted.name,
        run=hosted.run,
        state="ended" if hosted.ending and not job.attempts.failure else job.state,
        reason=job.attempts.failure or hosted.ending or job.attempts.why_recovering,
        workers=hosted.config.workers,
        members=len(job.members),
        iteration=job.iterations.first_open,
        attempt=job.attempts.number,
        policy=hosted.policy,
        predictor=hosted.predictor,
        mode=hosted.config.synchronisation.mode,
        spec=wire_spec(job.spec),
        batch_size=job.planner.batch_size,
        age=time.monotonic() - hosted.since,
    )


def status(hosted: HostedJob, events_after: int) -> Any:
    """A job, its members, and its events after one whose number is known."""
    members = [
        _wire.MemberStatus(
            worker=member.worker,
            state="waiting"
            if member.worker in hosted.waiting and member.state == "working"
            else member.state,
            bounds=wire_bounds(member.bounds),
            iteration=member.iteration,
            silence=member.silence,
        )
        for member in hosted.job.members.standings(time.monotonic())
    ]
    new = min(len(hosted.log), max(0, hosted.said - 1 - events_after))
    events = [
        _wire.Event(number=hosted.said - new + i, at=at, text=text)
        for i, (at, text) in enumerate(islice(hosted.log, len(hosted.log) - new, None))
    ]
    return _wire.StatusReply(summary=summary(hosted), members=members, events=events)


def records(run: str, iterations: Sequence[PackedRecord]) -> Any:
    """Records, as many as one answer may have."""
    names: dict[tuple[str, ...], int] = {}
    packed: list[Any] = []
    size = 0
    for one in iterations:
        if one.names not in names:
            names[one.names] = len(names)
            size += sum(map(len, one.names))
        size += len(one.values)
        if packed and size > _RECORDS_BYTES:
            break
        record = one.record
        packed.append(
            _wire.PackedRecord(
                iteration=record.iteration,
                epoch=record.epoch,
                start=record.start,
                total=record.total,
                attempt=record.attempt,
                duration=record.duration,
                names=names[one.names],
                values=one.values,
            )
        )
    return _wire.RecordsReply(run=run, names=[list(workers) for workers in names], iterations=packed)
