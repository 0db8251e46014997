"""The parts of a manager's jobs that go into its state, and come out of it when the manager is restarted."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from batchsize_manager import status
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.effects import EVENTS, Effects
from batchsize_manager.job.job import Job
from batchsize_manager.job.members import SavedMember
from batchsize_manager.job.operations import REPLAYED
from batchsize_manager.job.restoration import restore_job
from batchsize_manager.learning.learning import Learning
from batchsize_manager.managed_job import ManagedJob
from batchsize_manager.storage.changes import (
    Begun,
    Completed,
    Controlled,
    Ended,
    Learnt,
    Logged,
    MembersChanged,
    Rewound,
)
from batchsize_manager.storage.retention import Retention
from batchsize_manager.storage.state_format import STATE_FILE, StateError
from batchsize_manager.storage.state_reader import DamagedRun, SavedRun, StateReader, open_state
from batchsize_manager.storage.state_writer import StateWriter
from idl.records import IterationRecord
from rpc.limited_log import LimitedLog

log = logging.getLogger(__name__)

_READ_AT_ONCE = 50_000  # records of workers


class Archive:
    """The jobs of a manager, kept in a folder.

    A job is kept from its start on: before that, its workers would join it again.

    Args:
        folder: The folder, which must not be in use by another manager.
        retention: Limits of what is kept.
        learning: The maker of the jobs' policies.
        config: Options of the jobs.
        limited_log: The log of events of jobs.

    Attributes:
        writer: The writer of the state file.

    Raises:
        StateError: The folder cannot be used; the message says why.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention,
        learning: Learning,
        config: JobConfig,
        limited_log: LimitedLog,
    ) -> None:
        self._folder = folder
        self._learning = learning
        self._config = config
        self._limited_log = limited_log
        self._kept: dict[str, Controlled] = {}  # by run, the changes by operators as written last
        self.writer = StateWriter(folder, retention)

    # -- into the state

    def keep(self, managed: ManagedJob, effects: Effects) -> None:
        """Remember what an event of a job has brought."""
        job, run = managed.job, managed.run
        if not job.members.started:
            return
        events = [event for event, _ in effects.log]
        kept = self._kept.get(run)
        if kept is None:
            mode = self._config.synchronisation.mode
            now = time.time()
            self.writer.put(
                Begun(
                    run, managed.name, job.spec, managed.policy, mode, job.first_iteration, job.position, now
                )
            )
            kept = self._kept[run] = Controlled(run)
            self.learnt(managed)
            events = list(job.outbox.events)
        now = time.time()
        for record in effects.completed:
            self.writer.put(Completed(run, record, now))
        for event in events:
            self.writer.put(Logged(run, event, now))
        if effects.keep:
            changes = job.planner.batches.changes
            self.writer.put(MembersChanged(run, job.attempts.number, job.members.saved, changes))
            controlled = _controlled(managed)
            if kept != controlled:
                self._kept[run] = controlled
                self.writer.put(controlled)

    def rewound(self, managed: ManagedJob, iteration: int) -> None:
        """Write that a job goes on from an iteration; records of that and later ones are void."""
        if managed.run in self._kept:
            self.writer.put(Rewound(managed.run, iteration))

    def learnt(self, managed: ManagedJob) -> None:
        """Write what a job's policy has learned."""
        models = managed.job.planner.policy.models()
        if managed.run in self._kept and models:
            self.writer.put(Learnt(managed.run, models))

    def ended(self, managed: ManagedJob, why: str) -> None:
        """Write that a job is over."""
        if self._kept.pop(managed.run, None) is not None:
            self.writer.put(Ended(managed.run, why, time.time()))

    def once_kept(self, function: Callable[[], None]) -> None:
        """Call a function once all is written; see `StateWriter.after_commit`."""
        self.writer.after_commit(function)

    def notices(self) -> list[str]:
        """Return what users should know of the state; see `StateWriter.notices`."""
        return self.writer.notices()

    def close(self) -> None:
        """Write what waits to be written, and release the folder."""
        self.writer.close()

    # -- out of the state

    def restore(self) -> tuple[list[ManagedJob], dict[str, str]]:
        """Return the jobs that had not ended when the last manager did; to be called first.

        Returns:
            The jobs that go on, and by name the reasons why others cannot.

        Raises:
            StateError: The file cannot be read.
        """
        restored: list[ManagedJob] = []
        given_up, ended = {}, []
        reader = self.writer.reader
        for run in reader.unfinished():
            why = _damaged(run.why) if isinstance(run, DamagedRun) else self._restore(run, reader, restored)
            if why is None:
                continue
            log.warning(
                "job %s is not restored from %s: %s",
                *(run.job or "of unknown name", self._folder / STATE_FILE, why),
                extra={"job": run.job, "run": run.run},
            )
            if run.run is not None:
                ended.append(Ended(run.run, why, time.time()))
            if run.job is not None:
                given_up[run.job] = why
        for change in ended:
            self.writer.put(change)
        return restored, given_up

    def _restore(self, run: SavedRun, reader: StateReader, restored: list[ManagedJob]) -> str | None:
        """Restore a run, if possible; else return why it is not."""
        members = reader.members(run.run)
        why = _why_not_restored(run, members, self._config)
        if why is not None:
            return why
        records = reader.last_records(run.run, REPLAYED)
        events = reader.last_events(run.run, EVENTS)

        def restore(learned: bytes) -> Job:
            return restore_job(
                run.spec,
                self._config,
                self._learning.make_policy(learned, run.balancing),
                first_iteration=run.first_iteration,
                attempt=run.attempt,
                members=members,
                records=records,
                events=[event.event for event in events],
                now=time.monotonic(),
                position=run.position,
                started=True,
                batch_changes=run.batch_changes,
                total=run.batch_size,
                paused=run.paused,
            )

        fields = {"job": run.job, "run": run.run}
        try:
            job = restore(run.learned)
        except Exception as error:  # noqa: BLE001 - whatever is in there, the other jobs go on
            try:
                job = restore(b"")
            except Exception as other:  # noqa: BLE001 - as above
                return _damaged(f"{type(other).__name__}: {other}")
            log.warning(
                "job %s: what it has learned is damaged in %s, so that it learns anew (%s)",
                *(run.job, self._folder / STATE_FILE, error),
                extra=fields,
            )
        following = records[-1].iteration + 1 if records else run.first_iteration
        log.info(
            "job %s is restored, with %d members; iteration %d is next",
            run.job,
            len(job.members),
            following,
            extra=fields | {"attempt": job.attempts.number, "iteration": following},
        )
        managed = ManagedJob(
            run.job,
            run.run,
            job,
            run.balancing or self._learning.balancing,
            self.once_kept,
            self._limited_log,
            rebalanced=run.balancing is not None,
            logged=len(events),
        )
        self._kept[run.run] = _controlled(managed)
        managed.log.extend((event.at, event.event) for event in events)
        restored.append(managed)
        return None

    # -- requests

    async def history(self, name: str, managed: ManagedJob | None, first: int, limit: int) -> Any:
        """Return the answer to `history`, with what is remembered of what the job itself has forgotten.

        Args:
            name: The job's name.
            managed: The job, if it is in memory; None: its last run is looked up.
            first: The first iteration asked for.
            limit: The most iterations to return.

        Returns:
            The wire's answer; None if there is no such job.

        Raises:
            StateError: The file cannot be read, or lacks what has happened since its writer has ended.
        """
        if self.writer.has_ended:
            raise StateError("it is not written any more: start the manager again; its log says why")
        run = managed.run if managed is not None else None
        past = await asyncio.to_thread(_read_history, self._folder, name, run, first, limit)
        if managed is None:
            return status.history(*past) if past is not None else None
        records = _joined(past[1] if past is not None else [], managed.job.history(first, limit))
        return status.history(managed.run, records[:limit])


def _joined(remembered: list[IterationRecord], recent: list[IterationRecord]) -> list[IterationRecord]:
    """Return records from the file, then those in memory, unless some between are not written yet."""
    begins = recent[0].iteration if recent else math.inf
    earlier = [record for record in remembered if record.iteration < begins]
    if earlier and earlier[-1].iteration + 1 < begins:
        return earlier  # the rest is for the next call
    return [*earlier, *recent]


def _controlled(managed: ManagedJob) -> Controlled:
    """Return the changes that operators have made to a job."""
    job = managed.job
    total = job.planner.batches.total
    return Controlled(
        managed.run,
        managed.balancing if managed.rebalanced else None,
        total if total != job.spec.total_batch_size else None,
        job.operations.paused,
    )


def _why_not_restored(run: SavedRun, members: Sequence[SavedMember], config: JobConfig) -> str | None:
    """Return why a job cannot go on after a restart of the manager; None if it can."""
    for mode in (run.mode, config.synchronisation.mode):
        if mode != "bsp":
            return (
                f"the manager was started again, and jobs in mode {mode} are not brought back: "
                f"start the job again from its checkpoint"
            )
    if any(member.unreleasable for member in members):
        return (
            "the manager was started again, and workers that reduce gradients among themselves cannot be "
            "brought together again: start the job again from its checkpoint"
        )
    return None


def _damaged(why: str) -> str:
    return f"its state is damaged ({why}): start the job again from its checkpoint"


def _read_history(
    folder: Path, job: str, run: str | None, first: int, limit: int
) -> tuple[str, list[IterationRecord]] | None:
    """Read a run, or a job's last, and its records from the file alone; None if there is none."""
    with open_state(folder) as reader:
        runs = [saved for saved in reader.runs(job) if run in (None, saved.run)]
        if not runs:
            return None
        run = runs[-1].run
        some = max(1, _READ_AT_ONCE // max(1, len(reader.members(run))))
        return run, reader.records(run, first, min(limit, some))
