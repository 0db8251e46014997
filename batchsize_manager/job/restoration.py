"""A job that an earlier manager ran, made again from what was kept of it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from batchsize_manager.job.batch_sizes import BatchChange
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.history import surviving_records
from batchsize_manager.job.job import Job
from batchsize_manager.job.members import DRAINED, SavedMember
from batchsize_manager.job.operations import REPLAYED
from batchsize_manager.policies import Policy
from idl.plan import JobSpec
from idl.records import IterationRecord


def restore_job(
    spec: JobSpec,
    config: JobConfig,
    policy: Policy,
    *,
    first_iteration: int,
    attempt: int,
    members: Sequence[SavedMember],
    records: Sequence[IterationRecord],
    events: Iterable[str] = (),
    now: float,
    position: tuple[int, int] | None = None,
    started: bool | None = None,
    batch_changes: Sequence[BatchChange] = (),
    total: int | None = None,
    paused: bool = False,
) -> Job:
    """Return the job in a new attempt: it waits for `rewind`.

    With the policy `even` it plans from there on what it would have planned.

    Args:
        spec: What is trained on.
        config: How the job is run.
        policy: How batches are split; it is shown what the last records say.
        first_iteration: Where the job began.
        attempt: That it was in, for all that is known.
        members: Who was in it, in order. They count as disconnected, but have more time to come back.
        records: Of its complete iterations, of any attempt; the last ones may be missing.
        events: What has happened before, in words.
        now: The time.
        position: As for a new job.
        started: Whether all workers had joined once; None: as far as the rest tells.
        batch_changes: Where the batch's size had changed; left out: as far as the records tell.
        total: Samples of a whole batch, where an operator has changed that.
        paused: Whether it was paused.
    """
    # The size of its batches is restored below; with which it was to begin no longer counts.
    job = Job(spec, replace(config, batch_size=None), policy, first_iteration, position=position)
    job.outbox.events.extend(events)
    job.attempts.number = attempt
    for saved in members:
        _restore_member(job, saved, now)
    batches = job.planner.batches
    batches.restore(batch_changes)
    batches.total = total or spec.total_batch_size
    job.operations.paused = paused
    surviving = surviving_records(records)
    job.members.started = started or bool(
        started is None and (surviving or attempt or len(job.members) >= config.workers)
    )
    if (job.members.started or not job.members) and not job.planner.can_do_without(()):
        job.presence.awaited_until = now + config.keep
    job.presence.changed()
    job.planner.show(surviving[-REPLAYED:])
    for record in surviving:
        job.iterations.go_to(record.iteration + 1, now)
        job.iterations.history.add(record)
        if not batch_changes:
            batches.follow(record.iteration, record.epoch, record.start, record.total)
    if not job.members.started:
        return job
    if job.members.redoes:
        job.attempts.begin("the manager was started again")
    else:
        job.attempts.failure = "the manager was started again; restart the job from its checkpoint"
    return job


def _restore_member(job: Job, saved: SavedMember, now: float) -> None:
    """Add a member that may come back, or keep one as cut off."""
    member = job.members.add(
        saved.worker,
        saved.incarnation,
        saved.bounds,
        now,
        first=job.iterations.planned,
        attempt=job.attempts.number,
        unreleasable=saved.unreleasable,
        device=saved.device,
        beats=saved.beats,
    )
    member.back_by, member.is_returning = now + job.config.return_grace, True
    member.leaving = DRAINED if saved.drained else ""
    if saved.cut_off:
        job.members.cut_off(saved.worker, now - job.config.absence)
        del job.members.by_name[saved.worker]
