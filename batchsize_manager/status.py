"""Structs of the wire for clients that look at jobs: summaries, members, events and records."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

import idl
from batchsize_manager.job.waiting import awaited
from batchsize_manager.managed_job import ManagedJob
from idl.exchange import PARAMETER_SERVER
from idl.records import IterationRecord
from idl.translation import wire_bounds, wire_history, wire_spec

_wire = idl.batchsize_manager

_HISTORY_BYTES = 2**20  # of one answer


def summary(managed: ManagedJob) -> Any:
    """Return the `JobSummary` of a job's present state."""
    job = managed.job
    return _wire.JobSummary(
        job=managed.name,
        run=managed.run,
        state="ended" if managed.ending and not job.attempts.failure else job.state,
        reason=job.attempts.failure or managed.ending or _awaited(managed),
        workers=job.members.wanted,
        members=len(job.members),
        iteration=job.iterations.first_open,
        attempt=job.attempts.number,
        policy=managed.policy,
        predictor=managed.predictor,
        mode=managed.job.config.synchronisation.mode,
        spec=wire_spec(job.spec),
        batch_size=job.planner.batch_size,
        age=time.monotonic() - managed.since,
        sizer=job.planner.sizer.name,
        sizing=job.planner.sizer.reason,
        exchange=job.members.exchange or PARAMETER_SERVER,
        group_size=None if job.attempts.group is None else len(job.attempts.group.names),
    )


def _awaited(managed: ManagedJob) -> str:
    """Return what a job waits for that does not run; empty where it runs, or an operator has paused it."""
    job = managed.job
    if job.attempts.is_recovering:
        return job.attempts.why_recovering
    if job.state != "gathering":
        return ""
    waits = awaited(job)
    return waits if job.members.started else f"for {time.monotonic() - managed.since:.0f} s: {waits}"


def status(managed: ManagedJob, events_after: int) -> Any:
    """A job, its members, and its events after one whose number is known."""
    job = managed.job
    ranks = job.attempts.ranks
    members = [
        _wire.MemberStatus(
            worker=member.worker,
            state="waiting"
            if member.worker in managed.waiting and member.state == "working"
            else member.state,
            bounds=wire_bounds(member.bounds),
            iteration=member.iteration,
            silence=member.silence,
            device=member.device or None,
            rank=ranks.get(member.worker),
        )
        for member in job.members.standings(time.monotonic())
    ]
    new = min(len(managed.log), max(0, managed.logged - 1 - events_after))
    events = [
        _wire.Event(number=managed.logged - new + i, at=at, text=text)
        for i, (at, text) in enumerate(islice(managed.log, len(managed.log) - new, None))
    ]
    changes = [_wire.GroupChange(**asdict(change)) for change in job.regrouping.changes]
    return _wire.StatusReply(
        summary=summary(managed),
        members=members,
        events=events,
        changes=changes if job.members.has_formed_groups else None,
    )


def history(run: str, records: Sequence[IterationRecord]) -> Any:
    """Return the answer to `history`: as many of the records as one answer may have, at least one."""
    size, fitting = 0, 0
    names: tuple[str, ...] = ()
    for record in records:
        size += len(record.values)
        if record.workers is not names:
            names = record.workers
            size += sum(map(len, names))
        if fitting and size > _HISTORY_BYTES:
            break
        fitting += 1
    return wire_history(run, records[:fitting])
