"""A job as a state machine: its members, their reports, and the part that each of them computes next.

Events come in through `join`, `report`, `heartbeat`, `leave`, `disconnect`, `recover`, `rewind`, `tick` and
the methods of `operations`, each with its time. Then `take_effects` returns what the manager has to do, and
`answer` what it has to answer a member. No sockets, no threads, and no clock of its own, so that it can be
tested, replayed event by event, and restored from its saved state (`restoration`).

In bsp, the parts that a member leaves undone are redone: by the members that wait for them, as pieces of the
same iteration; or, where that is impossible, by all members in another attempt, for which parameters and
plans go back to one iteration. Members that all-reduce in a group that the manager forms redo them in another
attempt, with another group (`rendezvous`).
"""

from collections.abc import Iterator
from math import inf

from batchsize_manager.job import deadlines
from batchsize_manager.job.attempts import Attempts
from batchsize_manager.job.batch_sizer import BatchSizer
from batchsize_manager.job.batch_sizes import Batches
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.effects import Answer, Effects, Outbox, Over
from batchsize_manager.job.iterations import Iterations
from batchsize_manager.job.members import Member, Members
from batchsize_manager.job.operations import Operations
from batchsize_manager.job.planner import Planner
from batchsize_manager.job.presence import Presence
from batchsize_manager.job.progress import IterationProgress
from batchsize_manager.job.regrouping import Regrouping
from batchsize_manager.job.state import JobState
from batchsize_manager.policies import Policy
from batchsize_manager.policies.solver import InfeasibleError
from idl.bounds import Bounds
from idl.endings import FINISHED, GONE
from idl.errors import InvalidRequestError
from idl.exchange import FORMED_GROUP, PARAMETER_SERVER
from idl.plan import Assignment, JobSpec
from idl.records import IterationRecord, Report

_REFUSED = 5  # latest workers that were refused, which are remembered
_SHORTEST = 1e-9  # seconds; a batch processing time below that is a broken clock's


class Job:
    """One training job. Times are in seconds on any one monotonic clock.

    Args:
        spec: The data set and the batches.
        config: The job's configuration.
        first_iteration: The job's first iteration: above 0 for a job that goes on from a checkpoint.
        position: Epoch and first position of that iteration's batch; None where they follow from the
            iteration, since batches have always had the size of `spec`.
        total: Samples of a whole batch, as they were at a checkpoint; None: as the configuration has it.
        why: The reason for `total`, for the log; empty where nothing is to be logged.
        progress: `Scaling.progress` of the first iteration, as it was at a checkpoint; None: the iteration.
    """

    def __init__(
        self,
        spec: JobSpec,
        config: JobConfig,
        policy: Policy,
        first_iteration: int = 0,
        *,
        position: tuple[int, int] | None = None,
        total: int | None = None,
        progress: float | None = None,
        why: str = "as it was at the checkpoint",
    ) -> None:
        self.spec = spec
        self.config = config
        self.first_iteration = first_iteration
        self.outbox = Outbox()  # the collector of effects, with the latest events and the counts for metrics
        # Why workers were refused that have not joined since, by name; the latest few.
        self.refused: dict[str, str] = {}
        self.is_held_up = False  # whether a member's script does something else between two batches
        self._not_finite: int | None = None  # the first iteration for which a gradient was not finite
        self._finished = False
        self._left_well_at = -inf  # the time at which the last one left by itself; -inf: by an error
        self._gone_well = False  # whether who has gone last had finished, or fell silent before others had
        # And the others had no part in the last iteration, so that there is nothing to wait for.
        self._left_behind = False
        self._first_to_leave: tuple[int, str] | None = None  # the iteration that it left before, and its name
        scaled = config.workers if config.scale_batch else None
        batches = Batches(spec, scaled, first_iteration, position, progress)
        # The iterations under way, and the records of complete ones.
        self.iterations = Iterations(config.synchronisation, first_iteration, self.outbox)
        self.members = Members(config, self.outbox, self.iterations.has_piece)
        sizer = BatchSizer(config.sizing, spec, self.iterations.history)
        # The maker of plans, which splits batches by the policy.
        self.planner = Planner(config, policy, batches, sizer, self.members, self.outbox)
        # The present attempt; it has the reason, too, if the job recovers or has failed.
        self.attempts = Attempts(self.members, self.iterations, self.outbox)
        parts = self.members, self.iterations, self.planner, self.attempts
        self.presence = Presence(config, *parts, self.outbox)  # the changes of membership
        # The changes of the members' group, where the manager forms it.
        self.regrouping = Regrouping(*parts, self.presence, self.outbox, first_iteration)
        # The changes that operators can make.
        self.operations = Operations(*parts, self.presence, self.outbox, self._advance)
        if total is None:
            total, why = config.sizing.first(spec), "as the manager's configuration has it"
        if total != spec.total_batch_size:
            batches.total = total
            if why:
                said = f"the batch size is {total}, {why}; the workers say {spec.total_batch_size}"
                self.outbox.log(said)

    # -- events

    def join(
        self,
        worker: str,
        incarnation: str,
        bounds: Bounds,
        now: float,
        *,
        exchange: str = PARAMETER_SERVER,
        device: str = "",
        threads: int | None = None,
        beats: bool = False,
        again: bool = False,
    ) -> None:
        """Make a worker a member; a repeated call of the same incarnation is no error.

        Args:
            incarnation: The id of this start of the worker; a restarted worker has another.
            bounds: The batch sizes that it can take.
            exchange: The way in which it exchanges gradients with the others, one of `idl.exchange`.
            device: The kind of device that it computes on, in words; empty where it does not say.
            threads: The threads that it computes with, if it says so.
            beats: Whether it will send heartbeats, so that it counts as silent without them.
            again: Whether this incarnation was a member under an earlier manager that did not save it: it has
                to `recover`, whichever attempt it is in. Where others have its place, it is released.

        Raises:
            NotMemberError: `again` is set, but this incarnation was taken out of the job, not only cut off.
            InvalidRequestError: The name is a live member's, the minimum does not fit into the batch, the
                worker cannot take a micro-batch, or the others exchange gradients in another way.
            UnavailableError: The name is that of a member of which it is not known yet whether it lives, or
                there is room only if some members go.
        """
        if again:
            self.presence.take_back(worker, incarnation, now)  # it asks an earlier manager's successor
        if self.members.is_released(worker, incarnation):
            return
        bounds = self.spec.narrowed(bounds)
        member = self.members.by_name.get(worker)
        if member is not None and member.incarnation == incarnation:
            self.presence.hear(worker, incarnation, now)
            if member.suspended:
                self._welcome(worker, member, now)
            return
        self.members.check_exchange(worker, exchange)
        if again:
            self.members.check_never_removed(worker, incarnation)
        self.members.check_group_open(worker)
        if member is not None and (member.back_by is None or member.is_returning):
            self.members.contest(worker, incarnation, now)
        others = len(self.members.staying.keys() - {worker})
        try:
            self.members.check_room(worker, incarnation, bounds, self.planner.batches.cuts(others + 1), now)
        except InvalidRequestError as error:
            if not again:
                raise
            self.members.dismiss(worker, incarnation, f"others have its place: {error}")
            return
        if member is not None:
            self._remove(worker, "gave its name to a new incarnation", now)
        self.use_exchange(exchange)
        self.attempts.begin_if_deserted()
        self.iterations.discard_undelivered()
        first = self.iterations.planned
        self.members.add(
            worker,
            incarnation,
            bounds,
            now,
            first=first,
            attempt=self.attempts.number if self.attempts.is_settled and not again else -1,
            device=device,
            threads=threads,
            beats=beats,
        )
        self.refused.pop(worker, None)
        if self._first_to_leave is not None and self._first_to_leave[1] == worker:
            self._first_to_leave = None
        self.outbox.log(f"{worker} joined, for iteration {first} on", worker)
        self.attempts.want(f"{worker} joins")
        if self.config.synchronisation.exact and (difference := self.members.device_difference(worker)):
            self.outbox.log(f"sums are exact, but {difference}: its gradients may differ in the last bits")
        if self.members.started or len(self.members) >= self.members.wanted:
            self.presence.changed()  # spared for thousands of members that join before the first plan
        self._advance(now)

    def refuse(self, worker: str, why: str) -> None:
        """Note that a worker was refused, which the others wait for, perhaps; logged once for each reason."""
        if self.refused.pop(worker, None) != why:
            self.outbox.log(f"{worker} was refused: {why}", worker)
        self.refused[worker] = why
        while len(self.refused) > _REFUSED:
            del self.refused[next(iter(self.refused))]

    def report(self, worker: str, incarnation: str, report: Report, now: float) -> None:
        """Handle a worker's report that it has finished an assignment; a repeated report is ignored.

        Raises:
            NotMemberError: The worker is no member, nor was it released.
            InvalidRequestError: Another assignment is next for the worker, it cannot take a micro-batch, or
                it uses other shards than another worker.
        """
        if self.members.is_released(worker, incarnation):
            return
        maximum = None
        if report.maximum is not None:
            maximum = self.spec.narrowed(Bounds(maximum=report.maximum)).maximum
        member = self.presence.hear(worker, incarnation, now)
        if self.attempts.is_void(worker, member, report):
            if self.members.has_formed_groups:
                self.iterations.finish_interrupted(worker, report, now)
            return
        if self.attempts.is_disputed(worker, report):
            return
        self.planner.costs.take(report.costs)
        if report.not_finite is not None:
            self._note_not_finite(worker, report.not_finite)
        if member.suspended and not self._welcome(worker, member, now, report.iteration):
            return  # others have its part
        progress = self.iterations.progress.get(report.iteration)
        part = progress.piece_at(worker, report.start) if progress else None
        if part is None:
            if 0 <= report.iteration <= member.reported:
                return  # a repeated report, or one of a part that others did while the worker was out
            part = self._own_part(worker, member, report, progress)
        if part is not None and part.count and report.batch_processing_time < _SHORTEST:
            raise InvalidRequestError(
                f"batch_processing_time {report.batch_processing_time} for {part.count} samples: "
                f"must be at least {_SHORTEST} s"
            )
        member.reported = report.iteration
        member.assigned = report.iteration + 1
        member.reported_at, member.awaited_at = now, None
        lowered = report.at_once is not None and self.members.lower_at_once(worker, report.at_once)
        if maximum is not None and maximum < member.bounds.maximum:
            lowered |= self.members.lower_maximum(worker, maximum, self.planner.least_size())
        if lowered:
            self.presence.changed()
        if progress is None or part is None:
            return  # the others went on so long ago that the iteration is forgotten
        self.attempts.settle()
        progress.finish(worker, part, report, now)
        is_asp = self.config.synchronisation.mode == "asp"
        asks_for_more = is_asp and member.assigned == self.iterations.planned
        if asks_for_more or progress.pool or self.iterations.is_complete(progress, len(self.members)):
            self._advance(now)
        elif member.last is not None:
            self.members.let_go()

    def heartbeat(
        self, worker: str, incarnation: str, attempt: int, now: float, *, between: bool = False
    ) -> int | None:
        """Handle a worker's heartbeat, which names the attempt that it is in.

        Args:
            incarnation: The id of this start of the worker.
            between: Whether its script does something else, between two batches or before the first.

        Returns:
            The attempt to recover with, if the worker has to (`must_recover`); else None.

        Raises:
            NotMemberError: The worker is no member, nor was it released.
        """
        if self.members.is_released(worker, incarnation):
            return None  # the answer to another call, which it waits for, says that it is released
        member = self.presence.hear(worker, incarnation, now)
        member.beats = True
        if member.is_between and not between:
            member.reported_at, member.awaited_at = now, None  # so that it has time for its batch
        member.is_between = between
        if member.suspended and not self.members.staying:
            self._welcome(worker, member, now)  # it may wait for work itself, and there is nobody else
        self.attempts.catch_up(member, attempt)
        return self.must_recover(worker, incarnation)

    def recover(self, worker: str, incarnation: str, attempt: int, now: float) -> int:
        """Begin another attempt, as a worker cannot go on in its own; all workers may ask so, and repeatedly.

        Workers that all-reduce in a group that stays have no other parameters to go back to: their job fails.

        Returns:
            The new attempt, with which the shards are to be fenced.

        Raises:
            NotMemberError: The worker is no member.
            InvalidRequestError: The job's mode is not bsp, or the job has not begun.
        """
        if self.members.is_released(worker, incarnation):
            return self.attempts.number  # its `rewind` is answered with its release
        member = self.presence.hear(worker, incarnation, now)
        mode = self.config.synchronisation.mode
        if mode != "bsp":
            raise InvalidRequestError(f"a job in mode {mode} cannot go back; restart it from its checkpoint")
        self._check_begun()
        if self.members.has_fixed_group:
            self.attempts.failure = f"{worker} cannot go on; restart the job from its checkpoint"
            return self.attempts.number
        if member.suspended:
            self._welcome(worker, member, now)
        if attempt >= self.attempts.number:
            group = self.attempts.group
            keep = group is not None and group.keep
            why = "the state is written down" if keep else f"{worker} could not go on"
            self.attempts.begin(why, after=attempt)
        return self.attempts.announce(member)

    def rewind(
        self,
        worker: str,
        incarnation: str,
        attempt: int,
        iteration: int,
        now: float,
        place: tuple[int, int] | None = None,
        *,
        store: str | None = None,
        formed: int | None = None,
        formed_by: str | None = None,
        kept: bool = False,
    ) -> None:
        """End a recovery, as a worker has fenced all shards with the new attempt, and finds where they are.

        The first worker's call decides on the iteration; the others, and those in an earlier attempt, learn
        of it by `must_recover` and `next_assignment`. Where the manager forms the workers' group, all of them
        have to call, and their calls together decide (`rendezvous`).

        Args:
            incarnation: The id of this start of the worker.
            attempt: The new attempt.
            iteration: The iteration from which all shards can go on.
            place: Epoch and first position of that iteration's batch, if the shards know it; the job's own
                record of it may date from before a change of the batch's size.
            store: Address of the worker's store; only where the manager forms the group, as for `Arrival`.
            formed: The attempt whose group it formed last, likewise.
            formed_by: Id of the manager's process that had that group formed; None for this one.
            kept: Whether it has written its state down, likewise.

        Raises:
            NotMemberError: The worker is no member.
            InvalidRequestError: The job cannot go to that iteration or place, or to no other attempt at all;
                or it has not begun, or `store` or `formed` is invalid.
        """
        if self.members.is_released(worker, incarnation):
            return
        member = self.presence.hear(worker, incarnation, now)
        self._check_begun()
        self.attempts.catch_up(member, attempt, formed if self.members.has_formed_groups else None)
        if attempt > self.attempts.number:
            raise InvalidRequestError(f"attempt {attempt}: the job is in attempt {self.attempts.number}")
        if attempt < self.attempts.number:
            return
        if self.members.has_formed_groups:
            if formed is not None:
                self._check_place(iteration, place)
            by = formed_by or self.attempts.manager
            self.regrouping.arrive(member, attempt, iteration, formed, by, store, place, now, kept=kept)
        if member.suspended:
            self._welcome(worker, member, now)
        if self.attempts.is_recovering and not self.members.has_formed_groups:
            self._check_place(iteration, place)
            if place is not None:
                self.planner.batches.go_on(iteration, *place)
            self.attempts.end(iteration, now)
            self.presence.begin_again(iteration)
            self.outbox.log(f"attempt {attempt} begins at iteration {iteration}, as {worker} said", worker)
        member.attempt = attempt
        self._advance(now)

    def leave(self, worker: str, incarnation: str, now: float, *, failed: bool = False) -> None:
        """Take out a worker that leaves by itself.

        Args:
            incarnation: The id of this start of the worker.
            failed: Whether it leaves by an error, before it has finished.

        Raises:
            NotMemberError: The worker is no member.
        """
        member = self.members.known(worker, incarnation)
        self.outbox.tally.left += 1
        self._left_well_at = -inf if failed else now
        if not failed and self.config.synchronisation.mode == "bsp":
            left = member.assigned, worker
            self._first_to_leave = min(self._first_to_leave or left, left)
        # A reduction that waits for its part fails, or the others leave, too.
        why = "left after an error" if failed else "left"
        self._remove(worker, why, now, by=now + self.config.reconnect_grace, well=not failed)
        if not self.members:
            self.presence.awaited_until = None  # it is over
            self._finished = not failed
            self.presence.may_return &= failed
            if self._finished and self._first_to_leave and self._first_to_leave[0] <= member.reported:
                (before, first), self._first_to_leave = self._first_to_leave, None
                self.outbox.log(
                    f"{first} left by itself before iteration {before}, and others went on to iteration "
                    f"{member.reported}: their models differ; where a loop ends by what a worker measures, "
                    f"such as its own loss, decide it on one of them, or by what all have alike",
                    first,
                )

    def disconnect(self, worker: str, incarnation: str, now: float) -> None:
        """Note that a worker's connection broke; unless it calls within `reconnect_grace`, it is dead."""
        member = self.members.get(worker, incarnation)
        if member is not None:
            member.back_by = now + self.config.reconnect_grace

    def tick(self, now: float) -> None:
        """Take out or suspend the members whose deadlines have passed; to be called regularly."""
        config, members = self.config, self.members.by_name
        if self.presence.awaited_until is not None and now >= self.presence.awaited_until:
            self.presence.awaited_until = None
            if self._left_behind:
                self.members.release(dict.fromkeys(self.members, FINISHED), -1)
                self.members.let_go()
                self._finished = True
            if self.members:
                self.attempts.failure = f"{self.planner.lack}, and no other has come for {config.keep:g} s"
                return
        for worker in deadlines.gone(members, now):
            if self.members.recovers and worker in self.members:  # else it was released meanwhile
                self.members.cut_off(worker, now - config.absence)
            self._remove_dead(worker, "died: its connection broke", now)
        for worker in deadlines.absent(members, config.absence, now):
            self._remove_dead(worker, f"died: nothing was heard of it for {config.absence:g} s", now)
        if self.members.has_formed_groups:
            self.presence.look_for_returning(now)
            self._look_for_missing(now)
        if self.members.recovers:
            for worker in deadlines.silent(members, self.iterations.progress, config.silence, now):
                if self.presence.suspend(worker):
                    self._advance(now)
        typical = self.iterations.history.typical_duration if config.synchronisation.mode == "bsp" else 0.0
        overdue = deadlines.overdue(
            members, self.iterations.progress, self.iterations.planned, config.report_timeout, typical, now
        )
        self.is_held_up = any(deadlines.is_between(member, config, now) for member in members.values())
        for worker, iteration in list(overdue):
            if deadlines.is_between(members[worker], config, now):
                self._note_wait(worker, iteration, now)
                continue
            said = f"did not report iteration {iteration} in time"
            progress = self.iterations.progress.get(iteration)
            if progress is not None and (piece := progress.given_piece(worker)) is not None:
                said = (
                    f"did not report in time the {piece.count} samples of iteration {iteration}, from "
                    f"position {piece.start} on, that it was given since another worker had left them"
                )
            self._remove(worker, said, now)

    # -- what follows from them

    def take_effects(self) -> Effects:
        """Return what the manager has to do after the events since the last call.

        An event that raises an error may have had effects, too.
        """
        outbox, failure = self.outbox, self.attempts.failure
        if failure or self.has_ended:
            ending = FINISHED if self._finished else GONE
            outbox.effects.over = Over(failure or ending, failure is not None)
            outbox.effects.learned |= bool(self.members)  # else it is kept already
        if outbox.changed:
            outbox.changed = False
            outbox.effects.state = self.saved if self.members.started and outbox.keeps_state else None
        return outbox.take()

    @property
    def saved(self) -> JobState:
        """The state of the job that is to outlive its manager, as `restore_job` takes it."""
        return JobState(
            self.spec,
            self.config.synchronisation.mode,
            self.planner.batches.changes,
            self.planner.batches.total,
            self.members.started,
            self.attempts.number,
            self.operations.paused,
            self.operations.balancing,
            self.members.saved,
            self.first_iteration,
            self.operations.sizing,
            self.planner.sizer.name,
            self.members.exchange or PARAMETER_SERVER,
            self.members.chosen,
            self.members.saved_releases,
        )

    @property
    def has_ended(self) -> bool:
        """True if the job has no members, and waits for none; in formed groups, for none with a state."""
        presence = self.presence
        by_state = self.members.has_formed_groups
        waits = presence.may_return if by_state else presence.awaited_until is not None
        return not self.members and not waits

    @property
    def state(self) -> str:
        """One of failed, recovering, paused, gathering and running, the words of the IDL's `JobSummary`."""
        if self.attempts.failure:
            return "failed"
        if self.attempts.is_recovering:
            return "recovering"
        if self.operations.plans_nothing:
            return "paused"
        waits = not self.members.started or self.presence.awaited_until is not None
        return "gathering" if waits else "running"

    def answer(
        self,
        worker: str,
        incarnation: str,
        *,
        reported: int = -1,
        known: int = -1,
        joins: bool = False,
        rewinds: bool = False,
    ) -> Answer | None:
        """Answer a member that asks what to do, after a report or another call.

        Args:
            incarnation: The id of this start of the worker.
            reported: The iteration that it has just reported; -1 if it calls for another reason.
            known: The last iteration of which it says that it has a part already; else -1.
            joins: Whether it has just joined.
            rewinds: Whether it has called `rewind`.

        Returns:
            The answer; None if there is none yet.

        Raises:
            NotMemberError: The worker is no member, nor was it released.
        """
        recover = assignment = report_on = ahead = seat = None
        released = self.members.why_released(worker, incarnation, known)
        if released is None:
            recover = self.must_recover(worker, incarnation)
            if recover is None:
                assignment = self.next_assignment(worker, incarnation, known)
                if assignment is None:
                    # A worker with more to report must not wait for the answer to this report.
                    if not (self.operations.paused or self.attempts.wanted) or known <= reported:
                        return None
                    report_on = True
                elif self.config.lookahead:
                    ahead = self.assignments_after(worker, assignment.iteration)
                if assignment is not None and rewinds and self.attempts.group is not None:
                    seat = self.attempts.group.seat(worker)
        return Answer(
            released,
            recover,
            assignment,
            report_on,
            ahead,
            list(self.lost_since(max(0, reported))),
            self.continues(worker) if joins else None,
            reported < 0 or recover is not None,
            seat,
        )

    def continues(self, worker: str) -> int | None:
        """Return the first iteration that is not complete, if a newcomer is alone in a run that had begun."""
        first = self.iterations.first_open
        begun = first > self.first_iteration or self.attempts.number > self.members.has_formed_groups
        return first if begun and self.members.started and self.members.is_alone(worker) else None

    def must_recover(self, worker: str, incarnation: str) -> int | None:
        """Return the attempt in which a member has yet to fence the shards and call `rewind`, if any.

        Raises:
            NotMemberError: The worker is no member.
        """
        return self.attempts.must_recover(self.members.known(worker, incarnation))

    def next_assignment(self, worker: str, incarnation: str, known: int = -1) -> Assignment | None:
        """Return a member's part after the last one that it reported or, if later, after iteration `known`.

        Returns:
            The part; None while it is not planned.

        Raises:
            NotMemberError: The worker is no member.
        """
        member = self.members.known(worker, incarnation)
        progress = self.iterations.progress.get(member.reported)
        if progress is not None:
            given = progress.given_piece(worker)
            piece = progress.next_piece(worker)
            if piece is not None:
                if piece != given:  # not when it is dealt: at the end of a training all leave without it
                    self.outbox.log(
                        f"{worker} is given {piece.count} samples of iteration {piece.iteration}, from "
                        f"position {piece.start} on, that others have left",
                        worker,
                        changes=False,
                    )
                return piece
        # In backup, and in asp at the utmost, iterations may be complete without this member: it skips them.
        iteration = max(member.reported + 1, self.iterations.first_open)
        assignment = self.iterations.deliver(worker, max(iteration, known + 1))
        if assignment is not None and known < iteration:
            member.assigned = iteration
        return assignment

    def assignments_after(self, worker: str, iteration: int) -> list[Assignment]:
        """Return a member's parts of the planned iterations after `iteration`."""
        later = (self.iterations.deliver(worker, i) for i in range(iteration + 1, self.iterations.planned))
        return [assignment for assignment in later if assignment is not None]

    def lost_since(self, iteration: int) -> Iterator[Assignment]:
        """Yield the slices, of this and later iterations, whose workers have gone without a report.

        Only in backup: in bsp they are redone, and in the asynchronous modes nobody waits for a slice.
        """
        if self.config.synchronisation.mode != "backup":
            return
        yield from self.iterations.lost_since(iteration)

    def history(self, first_iteration: int, limit: int) -> list[IterationRecord]:
        """Return records of complete iterations, oldest first; the oldest ones are forgotten."""
        return self.iterations.history.page(first_iteration, limit)

    def use_exchange(self, exchange: str) -> None:
        """Have members exchange gradients in a way, one of `idl.exchange`."""
        self.members.exchange = exchange
        self.iterations.reported_by_one = exchange == FORMED_GROUP

    # -- within

    def _check_begun(self) -> None:
        """Check that the job has something to go back from: an iteration, or an attempt that a worker knew.

        Raises:
            InvalidRequestError: The job has not begun.
        """
        if not self.members.started and not self.attempts.is_recovering:
            raise InvalidRequestError(
                f"the job has not begun, with {len(self.members)} of {self.members.wanted} workers: there is "
                f"nothing to go back from; wait for the first assignment"
            )

    def _check_place(self, iteration: int, place: tuple[int, int] | None) -> None:
        """Check that the job can go on at an iteration, whose batch begins at `place` if that is given.

        Raises:
            InvalidRequestError: It cannot.
        """
        if iteration < self.first_iteration:
            raise InvalidRequestError(
                f"iteration {iteration}: must be at least {self.first_iteration}, where the job began"
            )
        if place is not None:
            if place[1] > self.spec.dataset_size:
                raise InvalidRequestError(
                    f"place {place[1]}: must be at most the dataset's size, {self.spec.dataset_size}"
                )
        elif not self.planner.batches.knows(iteration):
            raise InvalidRequestError(
                f"iteration {iteration}: the batch's size has changed so often since that only shards "
                f"which were told where its batch begins know it; give place"
            )

    def _note_not_finite(self, worker: str, iteration: int) -> None:
        """Log which worker's gradient was the first that was not finite, or have the job fail.

        All gradients after it are not finite, either, until the job goes back.
        """
        if self._not_finite is not None and iteration > self._not_finite:
            return
        self._not_finite = iteration
        said = f"the gradient of {worker} for iteration {iteration} has a NaN or an infinity"
        self.outbox.log(said, worker)
        if self.config.end_on_nan:
            self.attempts.failure = (
                f"{said}; restart the job from a checkpoint of before, with a smaller learning rate or other "
                f"data, or without --end-on-nan"
            )

    def _own_part(
        self, worker: str, member: Member, report: Report, progress: IterationProgress | None
    ) -> Assignment | None:
        """Return the part of the plan that a member reports; None where the plan is forgotten.

        Raises:
            InvalidRequestError: Another part is next for the member.
        """
        if report.iteration != member.assigned or report.iteration >= self.iterations.planned:
            raise InvalidRequestError(
                f"report of iteration {report.iteration}, but {member.assigned} is next for {worker!r}"
            )
        if progress is None:
            return None
        part = progress.plan.assignments[worker]
        if self.members.recovers and report.start not in (None, part.start):
            raise InvalidRequestError(
                f"report of position {report.start} on in iteration {report.iteration}, "
                f"but {worker!r} has {part.count} samples from {part.start} on"
            )
        return part

    def _remove(self, worker: str, why: str, now: float, by: float = -inf, *, well: bool = False) -> None:
        if worker in self.members:  # else it was released meanwhile
            self._gone_well = well
            self.presence.remove(worker, why, now, by)
            left = list(self.members.staying.values())
            if self.members.has_formed_groups:  # who has come back is in none before the next attempt
                left = [member for member in left if self.attempts.took_part(member)]
            self._left_behind = well and not left
            self.presence.look_for_returning(now)
            if self.members:
                self._advance(now)

    def _remove_dead(self, worker: str, why: str, now: float) -> None:
        """Take out a worker that has died; in a group that stays, no other can go on without it.

        A job has ended well without those that were not heard of since another has finished.
        """
        member = self.members.by_name.get(worker)
        well = member is not None and member.heard_at < self._left_well_at
        self._remove(worker, why, now, well=well)
        if not self.members and member is not None and well:
            self._finished = True
            if member.suspended:  # for long: nobody is about to start it again
                self.presence.awaited_until = None
        if self.members.has_fixed_group and self.members.started and self.members:
            self.attempts.failure = f"{worker} {why}, and the others cannot go on without it"

    def _welcome(self, worker: str, member: Member, now: float, iteration: int | None = None) -> bool:
        goes_on = self.presence.welcome(worker, member, now, iteration)
        self._advance(now)
        return goes_on

    def _advance(self, now: float) -> None:
        """Complete iterations, give out what must be redone, then plan as far as allowed."""
        if self.members.has_formed_groups and self.attempts.is_recovering:
            self._finished |= self.regrouping.meet(now, well=self._gone_well)
        if self.attempts.is_recovering:
            return
        iterations = self.iterations
        for observations in iterations.complete(len(self.members), now):
            self.planner.observe(observations)
        self.regrouping.note_step()
        iterations.forget_before(self._oldest_needed())
        if not self.members.started:
            self.members.started = len(self.members) >= self.members.wanted
            if self.members.started:
                self.refused.clear()
            if self.members.started and self.members.has_formed_groups:
                self.attempts.begin("the workers' first group is to be formed")
                return
        self.members.let_go()
        self._redo(now)
        if self.members.has_formed_groups and self.regrouping.is_due(now):
            return
        if not self.members.started or not self.members.staying or self.attempts.is_recovering:
            return
        if self.operations.plans_nothing or self.presence.awaited_until is not None:
            return
        if self.config.synchronisation.mode == "asp":
            last = max(member.reported for member in self.members.by_name.values()) + 1
        else:
            last = iterations.first_open + self.config.ahead
        while iterations.planned <= last and not self.attempts.failure:
            staying = len(self.members.staying)
            try:
                progress = self.planner.plan_next(iterations.planned, self.attempts.number, now)
            except InfeasibleError as error:
                self.attempts.failure = str(error)
            else:
                if self.members.has_formed_groups and len(self.members.staying) < staying:
                    self.attempts.want("workers are released")  # and the plan is for a group without them
                    self.regrouping.is_due(now)
                    return
                iterations.add(progress)
            self.outbox.effects.answer = True

    def _note_wait(self, worker: str, iteration: int, now: float) -> None:
        """Say, now and then, that the others wait for a member that does something else."""
        member = self.members.by_name[worker]
        if member.awaited_at is None or now - member.awaited_at >= self.config.report_timeout:
            member.awaited_at = now
            said = f"does something else between two batches; the others wait for it at iteration {iteration}"
            self.outbox.log(f"{worker} {said}", worker)

    def _look_for_missing(self, now: float) -> None:
        """Do without the members that others wait for in vain at a rendezvous; let a change begin in time."""
        number, config = self.attempts.number, self.config
        if self.attempts.is_recovering:
            silent, late = deadlines.missing(self.members.by_name, number, config, now)
            for worker in silent:
                if self.attempts.is_recovering and self.presence.suspend(worker):
                    self._advance(now)
            for worker in late:
                if self.attempts.is_recovering and self.attempts.number == number:
                    self._remove(worker, f"did not come into attempt {number} in time", now)
        if self.attempts.is_recovering or self.attempts.is_urgent(now):
            self._advance(now)

    def _oldest_needed(self) -> int:
        """Return the first iteration that a member may still report, or whose lost slices it has to know."""
        if self.members.recovers:
            return self.iterations.first_open
        slowest = min((member.reported for member in self.members.by_name.values()), default=0)
        return max(slowest, self.iterations.first_kept(len(self.members)))

    def _redo(self, now: float) -> None:
        """Give the pooled parts of the first open iteration to members that can redo them.

        These need the parameters of that iteration, which the members that took part in it have. With
        lookahead, members may be further already, so that none is sure to have them. If no member can redo
        the parts, another attempt begins.
        """
        progress = self.iterations.progress.get(self.iterations.first_open)
        if progress is None or not progress.pool:
            return
        plan = progress.plan
        if plan.iteration == self.first_iteration and not progress.done and self.members.staying:
            self.attempts.begin("a lost worker may have been setting the initial parameters at the shards")
            return
        able = {
            name: member.bounds
            for name, member in self.members.staying.items()
            if member.ready <= plan.iteration
            and name in plan.assignments
            and plan.assignments[name].count
            and not self.config.lookahead
        }
        takers = {name: bounds for name, bounds in able.items() if not progress.has_piece(name)}
        got = progress.deal(takers)
        for name in got:
            self.members.by_name[name].reported_at = now  # so that it has time for it
        if got:
            self.outbox.tally.pieces += len(got)
            self.outbox.effects.answer = True
        if not able and not progress.open and self.members.staying:
            self.attempts.begin(f"nobody can do what is missing of iteration {plan.iteration}")
