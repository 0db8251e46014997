"""What a job does by itself: the steps that follow from an event, each leaving it in a state that holds.

It knows nothing of who calls; the events themselves, and what can be read, are in `job`.
"""

from collections import deque
from collections.abc import Sequence

from batchsize_manager.counters import JobTally
from batchsize_manager.job.batch_sizes import Batches
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.iterations import Iterations
from batchsize_manager.job.members import Member, Members
from batchsize_manager.job.planner import Planner
from batchsize_manager.policies import Observation, Policy
from batchsize_manager.policies.solver import InfeasibleError
from idl.bounds import Bounds
from idl.errors import InvalidRequestError, UnavailableError
from idl.plan import JobSpec
from idl.records import IterationRecord

EVENTS = 200  # that a job keeps
_RETURN_SECONDS = 5.0  # in which a worker that lives calls a manager that was started again
DRAINED = "drained by an operator"


class JobSteps:
    """A job's state, and the steps that it takes; see `batchsize_manager.job.job.Job`, which is one."""

    def __init__(
        self,
        spec: JobSpec,
        config: JobConfig,
        policy: Policy,
        first_iteration: int = 0,
        *,
        position: tuple[int, int] | None = None,
        total: int | None = None,
    ) -> None:
        self.spec = spec
        self.first_iteration = first_iteration
        self.position = position
        self.attempt = 0
        self.failure: str | None = None
        self.started = False
        self.news = 0
        self.events: deque[str] = deque(maxlen=EVENTS)
        self.events_about: deque[str | None] = deque(maxlen=EVENTS)
        self.events_said = 0
        self.paused = False
        self._config = config
        self._policy = policy
        self._batches = Batches(
            spec, config.workers if config.scale_batch else None, first_iteration, position
        )
        if total is not None and total != spec.total_batch_size:
            self._batches.total = total
            self._say(
                f"the batch size is {total}, as an operator had changed it before the checkpoint; "
                f"the workers say {spec.total_batch_size}"
            )
        self._reduces = False  # whether the workers reduce gradients among themselves
        self._recovering = False
        self._why_recovering = ""
        self._kept_until: float | None = None  # who is left cannot go on: how long others are awaited
        self.tally = JobTally()
        self._iterations = Iterations(config.synchronisation, first_iteration, self.tally)
        self._members = Members(self._say, self._iterations.has_piece)
        self._planner = Planner(config, policy, self._batches, self._members, self._say)

    # -- within: attempts

    @property
    def _mode(self) -> str:
        return self._config.synchronisation.mode

    @property
    def _redoes(self) -> bool:
        """Whether what a member leaves undone is redone."""
        return self._mode == "bsp" and not self._reduces

    def _begin_attempt(self, attempt: int, why: str) -> None:
        """Forget what is under way, and have the members bring the shards to one iteration."""
        self.attempt = attempt
        self._recovering = True
        self._why_recovering = why
        self._iterations.interrupt()
        self.news += 1
        self._say(f"attempt {attempt} is needed: {why}")

    def _go_back(self, iteration: int, now: float) -> None:
        """Plan anew from an iteration on, for all who are there."""
        if iteration < self.first_iteration:
            raise InvalidRequestError(
                f"iteration {iteration}: must be at least {self.first_iteration}, where the job began"
            )
        self._recovering = False
        self._iterations.go_to(iteration, now)
        for member in self._members.by_name.values():
            member.begin_at(iteration)
            member.last, member.dispensable = None, ""
        self._drain_again(iteration)
        self._members_changed()
        self.news += 1

    # -- within: members

    def _add(
        self,
        worker: str,
        incarnation: str,
        bounds: Bounds,
        now: float,
        *,
        unreleasable: bool,
        device: str,
        beats: bool,
    ) -> None:
        first = self._iterations.planned
        self._members.by_name[worker] = Member(
            incarnation,
            bounds,
            now,
            first,
            first,
            first - 1,
            first,
            self.attempt,
            now,
            now,
            unreleasable,
            beats=beats and self._config.heartbeat > 0,
            device=device,
        )
        self._reduces |= unreleasable

    def _contest(self, worker: str, member: Member, incarnation: str, now: float) -> None:
        """Another incarnation wants a member's name: who is right shows if the member is heard again.

        Raises:
            InvalidRequestError: The member lives.
            UnavailableError: It may have died; its end may be on its way.
        """
        if member.contested is None or member.contested[0] != incarnation:
            member.contested = incarnation, now
        lives = member.heard_at > member.contested[1] or not (member.beats or member.is_returning)
        patience = min(self._config.silence, _RETURN_SECONDS) if member.is_returning else self._config.silence
        if not lives and now - member.contested[1] >= patience:
            return
        said = f"worker {worker!r} is a member already, as incarnation {member.incarnation}; "
        if lives:
            raise InvalidRequestError(f"{said}give each worker a name of its own")
        raise UnavailableError(f"{said}it is not known yet whether it lives")

    def _take_back(self, worker: str, member: Member, now: float) -> None:
        """A member that was believed dead has been cut off only; it is suspended until it asks for work."""
        # Others may be suspended, too, as this one is: planned for again, all have a larger batch, maybe.
        self._members.check_room(worker, member.bounds, self._batches.size(len(self._members) + 1))
        if self.started and not self._members and not self._recovering:
            self._begin_attempt(self.attempt + 1, "all members had gone")
        member.suspended, member.back_by, member.heard_at = True, None, now
        self._members.by_name[worker] = member
        self._say(f"{worker} had not died; it is a member again", worker)

    def _remove(self, worker: str, why: str, now: float) -> None:
        if worker not in self._members.by_name:
            return  # it was released meanwhile
        del self._members.by_name[worker]
        self.tally.gone += 1
        self._say(f"{worker} {why}", worker)
        if self.started and self._redoes and self._kept_until is None and not self._can_go_on:
            self._kept_until = now + self._config.keep
            if self._members:
                self._say(f"{self._planner.lack}: others are awaited for {self._config.keep:g} s")
        self._iterations.discard_undelivered()
        self._iterations.take_from(worker, redo=self._redoes)
        if self._members:
            self._hold_back()
            self._members_changed()
            self._advance(now)

    def _hold_back(self) -> None:
        """Who is leaving stays, where those who are left cannot take the batch without it any more."""
        leaving = {name: m for name, m in self._members.by_name.items() if m.last is not None}
        if not leaving or not self._redoes or self._recovering or self._can_go_on:
            return
        for name, member in leaving.items():
            member.last, member.dispensable, member.drained = None, "", False
            self._say(f"{name} stays, since the others cannot take the batch without it any more", name)
        self._begin_attempt(self.attempt + 1, "those who were leaving have to stay")

    def _suspend(self, worker: str, now: float) -> None:
        """A member is silent: let the others do its part, if they can."""
        if not self._planner.can_do_without({worker}):
            return
        self._members.by_name[worker].suspended = True
        self.tally.suspended += 1
        self._say(f"{worker} is silent; the others do its part meanwhile", worker)
        self._iterations.discard_undelivered()
        self._iterations.take_from(worker, redo=self._redoes)
        self._members_changed()
        self._advance(now)

    def _welcome(self, worker: str, member: Member, now: float, iteration: int | None = None) -> bool:
        """A suspended member is back, maybe to report an iteration.

        Returns:
            Whether it goes on where it was, since nobody has got its part yet.
        """
        member.suspended = False
        member.joined_at = now
        self._say(f"{worker} is back", worker)
        self._iterations.discard_undelivered()
        goes_on = self._iterations.reinstate(worker)
        if not goes_on:
            planned = self._iterations.planned
            if iteration not in self._iterations.progress:
                member.ready = planned
            member.first = min(member.first, planned)  # the others may have gone back meanwhile
            member.go_on_at(planned)
        self._members_changed()
        self._advance(now)
        return goes_on

    def _drain_again(self, iteration: int) -> None:
        """Who was drained is released before the iteration that an attempt begins with, if that can be."""
        drained = [name for name, member in self._members.by_name.items() if member.drained]
        if self._planner.can_do_without(drained):
            self._members.release(dict.fromkeys(drained, DRAINED), iteration - 1)
            return
        for name in drained:
            self._members.by_name[name].drained = False
            self._say(f"{name} stays, since the others cannot take the batch without it any more", name)

    def _show(self, policy: Policy, records: Sequence[IterationRecord]) -> None:
        """Show a new policy what the last records say; it knows the members."""
        for record in records:
            policy.observe(
                {
                    name: Observation(
                        part.batch_size, part.batch_processing_time, part.cpu_usage, part.memory_usage
                    )
                    for name, part in record.workers.items()
                }
            )

    @property
    def _can_go_on(self) -> bool:
        """Whether the members that are planned for can take a whole batch."""
        return self._planner.can_do_without(())

    def _members_changed(self) -> None:
        if self._kept_until is not None and not self._can_go_on:
            return
        self._kept_until = None
        try:
            self._planner.members_changed()
        except InfeasibleError as error:
            self.failure = str(error)

    # -- within: iterations

    def _advance(self, now: float) -> None:
        """Complete the iterations that can be, have redone what must be, then plan as far as allowed."""
        if self._recovering:
            return
        iterations = self._iterations
        for observations in iterations.complete(len(self._members), now):
            self._policy.observe(observations)
        iterations.forget_before(self._oldest_needed())
        if not self.started:
            self.started = len(self._members) >= self._config.workers
        self._members.let_go()
        self._redo(now)
        if not self.started or not self._members.staying or self._recovering:
            return
        if self.paused or self._kept_until is not None:
            return
        if self._mode == "asp":
            last = max(member.reported for member in self._members.by_name.values()) + 1
        else:
            last = iterations.first_open + self._config.ahead
        while iterations.planned <= last and not self.failure:
            try:
                iterations.add(self._planner.plan(iterations.planned, self.attempt, now))
            except InfeasibleError as error:
                self.failure = str(error)
            self.news += 1

    def _oldest_needed(self) -> int:
        """The first iteration that a member may still report, or have to be told the losses of."""
        if self._redoes:
            return self._iterations.first_open
        slowest = min((member.reported for member in self._members.by_name.values()), default=0)
        return max(slowest, self._iterations.first_kept(len(self._members)))

    def _redo(self, now: float) -> None:
        """Give out what is pooled of the iteration that everybody waits for.

        It takes that iteration's parameters, which those have who took part in it; where it is computed while
        reports are under way, nobody is sure to have them. If nobody can, all begin another attempt.
        """
        progress = self._iterations.progress.get(self._iterations.first_open)
        if progress is None or not progress.pool:
            return
        plan = progress.plan
        if plan.iteration == self.first_iteration and not progress.done and self._members.staying:
            self._begin_attempt(
                self.attempt + 1, "who is missing may have been about to set the parameters at the shards"
            )
            return
        able = {
            name: member.bounds
            for name, member in self._members.staying.items()
            if member.ready <= plan.iteration
            and name in plan.assignments
            and plan.assignments[name].count
            and not self._config.lookahead
        }
        takers = {name: bounds for name, bounds in able.items() if not progress.has_piece(name)}
        got = progress.deal(takers)
        for name in got:
            self._members.by_name[name].reported_at = now  # so that it has time for it
        if got:
            self.tally.pieces += len(got)
            self.news += 1
            self._say(f"what is missing of iteration {plan.iteration} is given to {', '.join(got)}")
        if not able and not progress.open and self._members.staying:
            self._begin_attempt(
                self.attempt + 1, f"nobody can do what is missing of iteration {plan.iteration}"
            )

    def _say(self, event: str, worker: str | None = None) -> None:
        self.events.append(event)
        self.events_about.append(worker)
        self.events_said += 1
