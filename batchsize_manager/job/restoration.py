"""A job that an earlier manager ran, restored from its saved state and records."""

from collections.abc import Iterable, Sequence

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.history import surviving_records
from batchsize_manager.job.job import Job
from batchsize_manager.job.members import DRAINED
from batchsize_manager.job.operations import REPLAYED
from batchsize_manager.job.state import JobState, SavedMember
from batchsize_manager.policies import Policy
from idl.records import IterationRecord


def restore_job(
    state: JobState,
    config: JobConfig,
    policy: Policy,
    *,
    records: Sequence[IterationRecord],
    events: Iterable[str] = (),
    now: float,
) -> Job:
    """Return a saved job in a new attempt, in which it waits for `Job.rewind`.

    With the policy `even`, its plans from there on are those that it would have made without the restart.

    Args:
        state: The job's state. Its members count as disconnected, but have more time to come back.
        config: The job's configuration.
        policy: The policy that splits batches; it observes the latest records.
        records: Records of complete iterations, of any attempt; the last ones may be missing.
    """
    job = Job(state.spec, config, policy, state.first_iteration, total=state.batch_size, why="")
    job.outbox.events.extend(events)
    job.attempts.number = state.attempt
    job.use_exchange(state.exchange)
    for saved in state.members:
        _restore_member(job, saved, now)
    job.members.restore_releases(state.released)
    batches = job.planner.batches
    batches.restore(state.batch_changes)
    job.operations.paused, job.operations.balancing = state.paused, state.balancing
    if state.sizing is not None:
        job.operations.sizing = state.sizing
        job.planner.sizer.use(state.sizing)
    job.members.started, job.members.chosen = state.started, state.workers
    if (job.members.started or not job.members) and not job.planner.can_do_without(()):
        job.presence.awaited_until = now + config.keep
    job.presence.look_for_returning(now)
    job.presence.changed()
    surviving = surviving_records(records)
    job.planner.show(surviving[-REPLAYED:])
    for record in surviving:
        job.iterations.go_to(record.iteration + 1, now)
        job.iterations.history.add(record)
    if not job.members.started:
        return job
    if job.members.recovers:
        job.attempts.begin("the manager was started again")
    else:
        job.attempts.failure = "the manager was started again; restart the job from its checkpoint"
    return job


def _restore_member(job: Job, saved: SavedMember, now: float) -> None:
    """Add a saved member, which has time to come back, or remember one that was cut off."""
    member = job.members.add(
        saved.worker,
        saved.incarnation,
        saved.bounds,
        now,
        first=job.iterations.planned,
        attempt=job.attempts.number,
        device=saved.device,
        beats=saved.beats,
    )
    member.back_by, member.is_returning = now + job.config.silence, True
    member.leaving = DRAINED if saved.drained else ""
    if saved.cut_off:
        job.members.cut_off(saved.worker, now - job.config.absence)
        del job.members.by_name[saved.worker]
