"""The restoration of a restarted manager's jobs from its state."""

import logging
import time

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.effects import EVENTS
from batchsize_manager.job.job import Job
from batchsize_manager.job.operations import REPLAYED
from batchsize_manager.job.restoration import restore_job
from batchsize_manager.job.state import JobState
from batchsize_manager.learning.learning import Learning
from batchsize_manager.managed_job import ManagedJob
from batchsize_manager.storage.changes import Ended
from batchsize_manager.storage.state_reader import DamagedRun, SavedRun
from batchsize_manager.storage.state_writer import StateWriter
from idl.exchange import FIXED_GROUP
from rpc.limited_log import LimitedLog

log = logging.getLogger(__name__)


def restore_jobs(
    writer: StateWriter, learning: Learning, config: JobConfig, limited_log: LimitedLog
) -> tuple[list[ManagedJob], dict[str, str]]:
    """Restore the jobs that had not ended when the last manager ended.

    Args:
        writer: The writer of the state, to which nothing has been put yet.
        learning: The maker of the jobs' policies.

    Returns:
        The jobs that go on, and by name the reasons why others cannot.

    Raises:
        StateError: The file cannot be read.
    """
    restored: list[ManagedJob] = []
    given_up: dict[str, str] = {}
    ended: list[Ended] = []
    for run in writer.reader.unfinished():
        made = _restore(run, writer, learning, config, limited_log)
        if isinstance(made, ManagedJob):
            restored.append(made)
            continue
        log.warning(
            "job %s is not restored from %s: %s",
            *(run.job or "of unknown name", writer.path, made),
            extra={"job": run.job, "run": run.run},
        )
        if run.run is not None:
            ended.append(Ended(run.run, made, time.time()))
        if run.job is not None:
            given_up[run.job] = made
    for change in ended:
        writer.put(change)
    for managed in restored:
        effects = managed.job.take_effects()
        managed.note(effects)
        managed.hand_over()
        managed.log_events(effects)
        managed.job.outbox.effects.fit = effects.fit  # for later: there is no event loop yet
    return restored, given_up


def _restore(
    run: SavedRun | DamagedRun,
    writer: StateWriter,
    learning: Learning,
    config: JobConfig,
    limited_log: LimitedLog,
) -> ManagedJob | str:
    """Return the restored job of a run, or the reason why it cannot go on."""
    if isinstance(run, DamagedRun):
        return _damaged(run.why)
    state = run.state
    if why := _why_not_restored(state, config):
        return why
    records = writer.reader.last_records(run.run, REPLAYED)
    events = writer.reader.last_events(run.run, EVENTS)
    texts = [event.event for event in events]
    fields = {"job": run.job, "run": run.run}

    def restore(learned: bytes) -> Job:
        policy = learning.make_policy(learned, state.balancing)
        return restore_job(state, config, policy, records=records, events=texts, now=time.monotonic())

    try:
        job = restore(run.learned)
    except Exception as error:  # noqa: BLE001 - whatever is in there, the other jobs go on
        try:
            job = restore(b"")
        except Exception as other:  # noqa: BLE001 - as above
            return _damaged(f"{type(other).__name__}: {other}")
        log.warning(
            "job %s: what it has learned is damaged in %s, so that it learns again (%s)",
            *(run.job, writer.path, error),
            extra=fields,
        )
    following = records[-1].iteration + 1 if records else state.first_iteration
    log.info(
        "job %s is restored, with %d members; iteration %d is next",
        *(run.job, len(job.members), following),
        extra=fields | {"attempt": job.attempts.number, "iteration": following},
    )
    managed = ManagedJob(run.job, run.run, job, learning.balancing, writer, limited_log, is_kept=True)
    managed.log.extend((event.at, event.event) for event in events)
    managed.logged = len(events)
    return managed


def _why_not_restored(state: JobState, config: JobConfig) -> str | None:
    """Return why a job cannot go on after a restart of the manager; None if it can."""
    for mode in (state.mode, config.synchronisation.mode):
        if mode != "bsp":
            return (
                f"the manager was started again, and jobs in mode {mode} are not brought back: "
                f"start the job again from its checkpoint"
            )
    if state.exchange == FIXED_GROUP:
        return (
            "the manager was started again, and workers that reduce gradients among themselves cannot be "
            "brought together again: start the job again from its checkpoint"
        )
    return None


def _damaged(why: str) -> str:
    return f"its state is damaged ({why}): start the job again from its checkpoint"
