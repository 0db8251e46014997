"""A job as a state machine: who is in it, who has reported, and what everybody does next.

Events come in through `join`, `report`, `heartbeat`, `leave`, `disconnect`, `recover`, `rewind` and `tick`,
each with its time, and what operators want through the methods of `job_operations`; what follows from them is
read from `next_assignment`, `must_recover`, `history`, `ended` and `failure`. No sockets, no threads, and no
clock of its own, so that it can be tested, replayed event by event, and restored from what was kept of it.

In bsp, what a member leaves undone is redone: by those who wait for it, as pieces of the same iteration; or,
where that cannot be, by all in another attempt, for which parameters and plans go back to one iteration.
"""

from collections.abc import Iterable, Iterator, Sequence

from batchsize_manager.job import deadlines
from batchsize_manager.job.batch_sizes import BatchChange
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.history import surviving_records
from batchsize_manager.job.members import Member, SavedMember, Standing
from batchsize_manager.job.operations import REPLAYED, JobOperations
from batchsize_manager.job.packed import PackedRecord
from batchsize_manager.job.progress import IterationProgress
from batchsize_manager.policies import Policy
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.plan import Assignment, JobSpec
from idl.records import IterationRecord, Report

__all__ = ["REPLAYED", "Job", "JobConfig"]

_SHORTEST = 1e-9  # seconds; a batch processing time below that is a broken clock's


class Job(JobOperations):
    """One training job. Times are in seconds on any one monotonic clock.

    Args:
        spec: What is trained on.
        config: How the job is run.
        policy: How batches are split.
        first_iteration: Where it begins: above 0 for a job that goes on from a checkpoint.
        position: Epoch and first position of that iteration's batch, where that does not tell since batches
            have had other sizes.
        total: Samples of a whole batch, where an operator has changed that; None: as in `spec`.

    Attributes:
        attempt: How often it has been rewound.
        failure: Why the job cannot go on, or None.
        first_iteration: Where it began.
        position: Likewise, as given.
        started: Whether all workers have joined once.
        paused: Whether nothing more is planned, until it is said otherwise.
        news: Goes up when something may have come up for members that wait.
        events: The last things that happened, in words; of `events_said` in all.
        events_about: The worker that each of them is about; None for what is about several or none, or was
            said before the job was restored.
        tally: Counts of what happened.
    """

    @classmethod
    def restore(
        cls,
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
    ) -> "Job":
        """A job that an earlier manager ran, in a new attempt: it waits for `rewind`.

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
            batch_changes: As `batch_changes` was; left out: as far as the records tell.
            total: Samples of a whole batch, where an operator has changed that.
            paused: Whether it was paused.
        """
        job = cls(spec, config, policy, first_iteration, position=position)
        job.events.extend(events)
        job.events_about.extend(None for _ in job.events)
        job.events_said = len(job.events)
        job.attempt = attempt
        for saved in members:
            job._add(
                saved.worker,
                saved.incarnation,
                saved.bounds,
                now,
                unreleasable=saved.unreleasable,
                device=saved.device,
                beats=saved.beats,
            )
            member = job._members.by_name[saved.worker]
            member.back_by, member.is_returning = now + config.return_grace, True
            member.drained = saved.drained
            if saved.cut_off:
                job._members.cut_off(saved.worker, now - config.absence)
                del job._members.by_name[saved.worker]
        job._batches.restore(batch_changes)
        job._batches.total = total or spec.total_batch_size
        job.paused = paused
        surviving = surviving_records(records)
        job.started = started or bool(
            started is None and (surviving or attempt or len(job.members) >= config.workers)
        )
        if (job.started or not job.members) and not job._can_go_on:
            job._kept_until = now + config.keep
        job._members_changed()
        job._show(policy, surviving[-REPLAYED:])
        for record in surviving:
            job._iterations.go_to(record.iteration + 1, now)
            job._iterations.history.add(record)
            if not batch_changes:
                job._batches.follow(record.iteration, record.epoch, record.start, record.total)
        if not job.started:
            return job
        if job._redoes:
            job._begin_attempt(attempt + 1, "the manager was started again")
        else:
            job.failure = "the manager was started again; restart the job from its checkpoint"
        return job

    # -- events

    def join(
        self,
        worker: str,
        incarnation: str,
        bounds: Bounds,
        now: float,
        *,
        unreleasable: bool = False,
        device: str = "",
        beats: bool = False,
    ) -> None:
        """A worker wants to take part; the same incarnation may say so again.

        Args:
            worker: Its name.
            incarnation: Of this start of it.
            bounds: What batch sizes it can take.
            now: The time.
            unreleasable: Whether it must not be released, since the others could not go on without it.
            device: The kind of device that it computes on, in words; empty where it does not say.
            beats: Whether it will send heartbeats, so that its silence says something.

        Raises:
            InvalidRequestError: Its name is taken, or its minimum does not fit into the batch.
            UnavailableError: Its name is that of a member of which it is not known yet whether it lives.
        """
        if self._members.is_released(worker, incarnation):
            return
        member = self._members.by_name.get(worker)
        if member is not None and member.incarnation == incarnation:
            self._hear(worker, incarnation, now)
            if member.suspended:
                self._welcome(worker, member, now)
            return
        if member is not None and (member.back_by is None or member.is_returning):
            self._contest(worker, member, incarnation, now)
        others = len(self._members.staying.keys() - {worker})
        self._members.check_room(worker, bounds, self._batches.size(others + 1))
        if member is not None:
            self._remove(worker, "gave its name to a new incarnation", now)
        if self.started and self._redoes and not self._members and not self._recovering:
            self._begin_attempt(self.attempt + 1, "all members had gone")
        self._iterations.discard_undelivered()
        self._add(worker, incarnation, bounds, now, unreleasable=unreleasable, device=device, beats=beats)
        self._say(f"{worker} joined, for iteration {self._iterations.planned} on", worker)
        if self.started or len(self._members) >= self._config.workers:
            self._members_changed()  # not for each of thousands who come before the first plan
        self._advance(now)

    def report(self, worker: str, incarnation: str, report: Report, now: float) -> None:
        """A worker has finished an assignment; the same report may come again.

        Raises:
            NotMemberError: The worker is no member, nor was it released.
            InvalidRequestError: It was not this assignment's turn.
        """
        if self._members.is_released(worker, incarnation):
            return
        member = self._hear(worker, incarnation, now)
        if self._is_void(worker, member, report):
            return
        if member.suspended and not self._welcome(worker, member, now, report.iteration):
            return  # others have its part
        progress = self._iterations.progress.get(report.iteration)
        part = progress.piece_at(worker, report.start) if progress else None
        if part is None:
            if member.first <= report.iteration <= member.reported:
                return
            part = self._own_part(worker, member, report, progress)
        if part is not None and part.count and report.batch_processing_time < _SHORTEST:
            raise InvalidRequestError(
                f"batch_processing_time {report.batch_processing_time} for {part.count} samples: "
                f"must be at least {_SHORTEST} s"
            )
        member.reported = report.iteration
        member.assigned = report.iteration + 1
        member.reported_at = now
        if (
            report.maximum is not None
            and report.maximum < member.bounds.maximum
            and self._members.lower_maximum(worker, report.maximum, self.batch_size)
        ):
            self._members_changed()
        if progress is None or part is None:
            return  # the others went on so long ago that the iteration is forgotten
        progress.finish(worker, part, report, now)
        asks_for_more = self._mode == "asp" and member.assigned == self._iterations.planned
        if asks_for_more or progress.pool or self._iterations.is_complete(progress, len(self._members)):
            self._advance(now)
        elif member.last is not None:
            self._members.let_go()

    def heartbeat(self, worker: str, incarnation: str, attempt: int, now: float) -> int | None:
        """A worker, in that attempt, is alive.

        Returns:
            The attempt to recover with, if it has to; see `must_recover`.

        Raises:
            NotMemberError: It is no member, nor was it released.
        """
        if self._members.is_released(worker, incarnation):
            return None  # it is about to learn of that
        member = self._hear(worker, incarnation, now)
        member.beats = True
        if member.suspended and not self._members.staying:
            self._welcome(worker, member, now)  # it may wait for work itself, and there is nobody else
        self._catch_up(attempt)
        return self.must_recover(worker, incarnation)

    def recover(self, worker: str, incarnation: str, attempt: int, now: float) -> int:
        """A worker cannot go on in the attempt that it is in; the same may be said again, by all.

        Workers that reduce gradients themselves have no shards to go back with: their job fails.

        Returns:
            The new attempt, with which the shards are to be fenced.

        Raises:
            NotMemberError: It is no member.
            InvalidRequestError: The job's mode is not bsp.
        """
        if self._members.is_released(worker, incarnation):
            return self.attempt  # it is told so when it says `rewind`
        member = self._hear(worker, incarnation, now)
        if self._mode != "bsp":
            raise InvalidRequestError(
                f"a job in mode {self._mode} cannot go back; restart it from its checkpoint"
            )
        if self._reduces:
            self.failure = f"{worker} cannot go on; restart the job from its checkpoint"
            return self.attempt
        if member.suspended:
            self._welcome(worker, member, now)
        if attempt >= self.attempt:
            self._begin_attempt(attempt + 1, f"{worker} could not go on")
        return self.attempt

    def rewind(self, worker: str, incarnation: str, attempt: int, iteration: int, now: float) -> None:
        """All shards are fenced with the new attempt, and can go on from an iteration.

        The first to say decides. What holds for the others, and for those of an earlier attempt, is said by
        `must_recover` and `next_assignment`.

        Raises:
            NotMemberError: The worker is no member.
            InvalidRequestError: There was no such attempt, or the job cannot go to that iteration.
        """
        if self._members.is_released(worker, incarnation):
            return
        member = self._hear(worker, incarnation, now)
        if attempt > self.attempt:
            raise InvalidRequestError(f"attempt {attempt}: the job is in attempt {self.attempt}")
        if attempt < self.attempt:
            return
        if member.suspended:
            self._welcome(worker, member, now)
        if self._recovering:
            self._go_back(iteration, now)
            self._say(f"attempt {attempt} begins at iteration {iteration}, as {worker} said", worker)
        member.attempt = attempt
        self._advance(now)

    def leave(self, worker: str, incarnation: str, now: float) -> None:
        """A worker takes no further part.

        Raises:
            NotMemberError: It is no member.
        """
        self.member(worker, incarnation)
        self.tally.left += 1
        self._remove(worker, "left", now)
        if not self._members:
            self._kept_until = None  # it is over

    def disconnect(self, worker: str, incarnation: str, now: float) -> None:
        """A worker's connection broke; unless it comes back within the grace period, it has died."""
        member = self._members.get(worker, incarnation)
        if member is not None:
            member.back_by = now + self._config.reconnect_grace

    def tick(self, now: float) -> None:
        """Time has passed: take out who did not come back, or lets the others wait for too long."""
        config, members = self._config, self._members.by_name
        if self._kept_until is not None and now >= self._kept_until:
            self._kept_until = None
            if self._members:
                self.failure = f"{self._planner.lack}, and no other has come for {config.keep:g} s"
                return
        for worker in deadlines.gone(members, now):
            if self._redoes:
                self._members.cut_off(worker, now - config.absence)
            self._remove(worker, "died: its connection broke", now)
        for worker in deadlines.absent(members, config.absence, now):
            self._remove(worker, f"died: nothing was heard of it for {config.absence:g} s", now)
        if self._recovering:
            return  # nobody waits for anybody's report
        if self._redoes:
            for worker in deadlines.silent(members, self._iterations.progress, config.silence, now):
                self._suspend(worker, now)
        typical = self._iterations.history.typical_duration if self._mode == "bsp" else 0.0
        late = deadlines.late(
            members, self._iterations.progress, self._iterations.planned, config.report_timeout, typical, now
        )
        for worker, iteration in list(late):
            self._remove(worker, f"did not report iteration {iteration} in time", now)

    def note(self, event: str) -> None:
        """Something has happened outside of the job that its users should know of."""
        self._say(event)

    # -- what follows from them

    @property
    def members(self) -> list[str]:
        """The members' names, in the order of their slices."""
        return list(self._members.by_name)

    def members_incarnation(self, worker: str) -> str | None:
        """The incarnation of the member of that name, if there is one."""
        member = self._members.by_name.get(worker)
        return member.incarnation if member is not None else None

    @property
    def saved_members(self) -> list[SavedMember]:
        """The members as `restore` takes them."""
        return self._members.saved

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self._members)

    @property
    def planned(self) -> int:
        """How many iterations are planned."""
        return self._iterations.planned

    @property
    def ended(self) -> bool:
        """Whether nobody is in it, and nobody is awaited any more."""
        return not self._members and self._kept_until is None

    @property
    def batch_size(self) -> int:
        """The samples of a whole batch, as things are."""
        return self._planner.batch_size

    @property
    def batch_changes(self) -> list[BatchChange]:
        """Where the batch size has changed; what is planned relies on it."""
        return self._batches.changes

    @property
    def resized_at(self) -> int:
        """The iteration from which on batches have the size that they have now."""
        return self._batches.resized_at

    @property
    def completed(self) -> int:
        """The first iteration that is not complete."""
        return self._iterations.first_open

    @property
    def recorded(self) -> int:
        """How many iterations were completed in all, those that were gone back over included."""
        return self._iterations.recorded

    @property
    def completed_at(self) -> float:
        """When the last complete iteration was."""
        return self._iterations.completed_at

    @property
    def last_record(self) -> PackedRecord | None:
        """The record of the last complete iteration, if there is one; from any thread."""
        return self._iterations.history.last

    @property
    def recovering(self) -> int | None:
        """The attempt to fence the shards with, while the job waits for `rewind`; else None."""
        return self.attempt if self._recovering else None

    @property
    def state(self) -> str:
        """In a word, as in `JobSummary`."""
        if self.failure:
            return "failed"
        if self._recovering:
            return "recovering"
        if self.paused:
            return "paused"
        return "running" if self.started and self._kept_until is None else "gathering"

    @property
    def reason(self) -> str:
        """Why it is recovering; empty where it is not."""
        return self._why_recovering if self._recovering else ""

    def standings(self, now: float) -> list[Standing]:
        """How each member stands, in the order of their slices."""
        return [member.standing(worker, now) for worker, member in self._members.by_name.items()]

    def member(self, worker: str, incarnation: str) -> Member:
        """A member's state.

        Raises:
            NotMemberError: There is no such member, or it is another incarnation.
        """
        return self._members.known(worker, incarnation, self.events)

    def must_recover(self, worker: str, incarnation: str) -> int | None:
        """The attempt that a member has yet to fence the shards with and say `rewind` in, if there is one.

        Raises:
            NotMemberError: It is no member.
        """
        member = self.member(worker, incarnation)
        return self.attempt if self._recovering or member.attempt != self.attempt else None

    def next_assignment(self, worker: str, incarnation: str, known: int = -1) -> Assignment | None:
        """What a member does after the last assignment that it reported or, if later, iteration `known`.

        Returns:
            None while that is not planned.

        Raises:
            NotMemberError: It is no member.
        """
        member = self.member(worker, incarnation)
        progress = self._iterations.progress.get(member.reported)
        piece = progress.next_piece(worker) if progress else None
        if piece is not None:
            return piece
        # In backup, and in asp at the utmost, iterations may be complete without this member: it skips them.
        iteration = max(member.reported + 1, self._iterations.first_open)
        assignment = self._iterations.deliver(worker, max(iteration, known + 1))
        if assignment is not None and known < iteration:
            member.assigned = iteration
        return assignment

    def assignments_after(self, worker: str, iteration: int) -> list[Assignment]:
        """What is planned for a member beyond an iteration."""
        later = (self._iterations.deliver(worker, i) for i in range(iteration + 1, self._iterations.planned))
        return [assignment for assignment in later if assignment is not None]

    def why_released(self, worker: str, incarnation: str, known: int = -1) -> str | None:
        """Why a worker is released, in words; None if it is not.

        Who has been given its last assignment, `known`, is told before it has reported that.
        """
        return self._members.why_released(worker, incarnation, known)

    def lost_since(self, iteration: int) -> Iterator[Assignment]:
        """The slices, of this and later iterations, whose workers have gone without a report.

        Only in backup: in bsp they are redone, and in the asynchronous modes nobody waits for a slice.
        """
        if self._mode != "backup":
            return
        yield from self._iterations.lost_since(iteration)

    def history(self, first_iteration: int, limit: int) -> list[IterationRecord]:
        """Records of complete iterations, oldest first; what is too long ago is forgotten."""
        return self._iterations.history.page(first_iteration, limit)

    def packed_history(self, first_iteration: int, limit: int) -> list[PackedRecord]:
        """As `history`, packed."""
        return self._iterations.history.packed_page(first_iteration, limit)

    def last_records(self, limit: int) -> list[IterationRecord]:
        """The last complete iterations, at most so many, oldest first."""
        return self._iterations.history.latest(limit)

    # -- within

    def _hear(self, worker: str, incarnation: str, now: float) -> Member:
        cut_off = self._members.returning(worker, incarnation, now - self._config.absence)
        if cut_off is not None:
            self._take_back(worker, cut_off, now)
        member = self.member(worker, incarnation)
        member.heard_at = now
        member.back_by, member.is_returning = None, False
        return member

    def _is_void(self, worker: str, member: Member, report: Report) -> bool:
        """Whether a report is of another attempt than the present one, so that it tells nothing."""
        if not self._redoes:
            return False
        if report.attempt is not None:
            self._catch_up(report.attempt + self._recovering)  # nobody can have a part of it yet
        if not self._recovering and member.attempt == self.attempt and report.attempt in (None, self.attempt):
            return False
        self._say(
            f"{worker} reported iteration {report.iteration} of another attempt, which does not count", worker
        )
        return True

    def _own_part(
        self, worker: str, member: Member, report: Report, progress: IterationProgress | None
    ) -> Assignment | None:
        """The part of the plan that a member reports; None where the plan is forgotten.

        Raises:
            InvalidRequestError: It is not this part's turn.
        """
        if report.iteration != member.assigned or report.iteration >= self._iterations.planned:
            raise InvalidRequestError(
                f"report of iteration {report.iteration}, but {member.assigned} is next for {worker!r}"
            )
        if progress is None:
            return None
        part = progress.plan.assignments[worker]
        if self._redoes and report.start not in (None, part.start):
            raise InvalidRequestError(
                f"report of position {report.start} on in iteration {report.iteration}, "
                f"but {worker!r} has {part.count} samples from {part.start} on"
            )
        return part

    def _catch_up(self, attempt: int) -> None:
        """A worker knows of a later attempt, which an earlier manager did not live to keep: begin another."""
        if self._redoes and attempt > self.attempt:
            self._begin_attempt(attempt + 1, f"attempt {attempt} was not kept")
