"""Changes of the process group of a job's members, where the manager forms it: another group in each attempt.

Members call `rewind` for a rendezvous, at which the group is decided from what they say (`rendezvous`). The
manager keeps nothing of a group beyond its attempt, so that a restarted one decides alike.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from batchsize_manager.job.attempts import Attempts
from batchsize_manager.job.effects import Outbox
from batchsize_manager.job.iterations import Iterations
from batchsize_manager.job.members import DRAINED, Member, Members
from batchsize_manager.job.planner import Planner
from batchsize_manager.job.presence import Presence
from batchsize_manager.job.rendezvous import Arrival, form_group, newest
from idl.endings import FINISHED
from idl.errors import InvalidRequestError

_CHANGES = 20  # latest ones that are kept


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A change of the members' group, and what it has cost, by the job's clock."""

    attempt: int  # the attempt that began with it
    iteration: int  # the attempt's first iteration
    size: int  # number of members of the new group
    why: str  # the reason in words
    until_plan: float  # seconds from the end of the last iteration before it until `iteration` was planned
    until_step: float  # seconds from that end until `iteration` was complete


class Regrouping:
    """The changes of the members' group.

    Args:
        iterations: The job's iterations.
        presence: The job's changes of membership.
        outbox: Collects the effects.
        first_iteration: The job's first iteration, before which no member has any state.

    Attributes:
        changes: The latest changes of the group after which an iteration was completed, oldest first. One
            that another change has followed before that counts as a part of the later one.
    """

    def __init__(
        self,
        members: Members,
        iterations: Iterations,
        planner: Planner,
        attempts: Attempts,
        presence: Presence,
        outbox: Outbox,
        first_iteration: int,
    ) -> None:
        self._members = members
        self._iterations = iterations
        self._planner = planner
        self._attempts = attempts
        self._presence = presence
        self._outbox = outbox
        self._first_iteration = first_iteration
        self.changes: deque[GroupChange] = deque(maxlen=_CHANGES)
        self._changing: tuple[str, float] | None = None  # why, and when the last iteration before had ended

    def arrive(
        self,
        member: Member,
        attempt: int,
        steps: int,
        formed: int | None,
        formed_by: str,
        store: str | None,
        place: tuple[int, int] | None,
        now: float,
        *,
        kept: bool = False,
    ) -> None:
        """Note that a member has called `rewind` with the present attempt; other arguments as for `Arrival`.

        Raises:
            InvalidRequestError: An argument is invalid.
        """
        if not self._attempts.is_recovering:
            return  # it repeats its call, or waits for the next group
        self._attempts.check_steps(formed, formed_by, steps)
        again = member.arrival is not None and member.has_arrived(attempt)
        at = member.arrival.at if again and member.arrival is not None else now
        try:
            member.arrival = Arrival(attempt, steps, formed, formed_by, store or "", at, place, kept)
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error

    def is_due(self, now: float) -> bool:
        """Begin another attempt if another group is wanted, and it is time.

        Returns:
            Whether nothing is to be planned for the present group.
        """
        attempts, iterations = self._attempts, self._iterations
        staying, group, handed_on = self._members.staying, attempts.group, attempts.has_handed_on
        for member in staying.values():
            member.unreleasable = not handed_on
        if not attempts.wanted:
            return False
        grouped = {name for name, member in staying.items() if attempts.is_grouped(member)}
        is_idle = iterations.first_open == iterations.planned
        if not attempts.is_urgent(now):
            if not is_idle:
                return True
            if group is not None and not handed_on and len(grouped) == len(group.names) == len(staying):
                return False  # those that are drained hand on the state first, by another plan
        drained = self._drained
        if is_idle and handed_on and grouped - drained and self._planner.can_do_without(drained):
            self._members.release(dict.fromkeys(drained, DRAINED), iterations.planned - 1)
            self._members.let_go()
        attempts.begin(attempts.wanted)
        return True

    def meet(self, now: float, *, well: bool) -> bool:
        """Decide the group of the present attempt, which begins with it, if all members have arrived.

        Those that are suspended, or were cut off, are waited for only where no other has any state, as they
        may have it. If nobody is left that may, the job fails, or is over where the others had finished.

        Args:
            well: Whether who has gone last had finished.

        Returns:
            Whether the job is over so, and its members are released.
        """
        attempts, members, number = self._attempts, self._members, self._attempts.number
        arrivals = self._gathered
        if not arrivals:
            return False
        if self._lacks_state(arrivals):
            if len(members.staying) < len(members) or self._presence.may_return:
                return False
            if well:
                members.release(dict.fromkeys(arrivals, FINISHED), -1)
                members.let_go()
            else:
                attempts.failure = "no worker has its state any more; restart the job from its checkpoint"
            return well
        version = newest(arrivals.values())
        if attempts.keeping and any(one.kept and one.version == version for one in arrivals.values()):
            attempts.keeping = False
            self._outbox.log("the workers have written their state down")
        drained = self._drained
        group = form_group(arrivals, self._first_iteration)
        needed = not arrivals.keys() - group.lacking - drained and self._planner.can_do_without(drained)
        if group.place is not None:
            self._planner.batches.go_on(group.iteration, *group.place)
        why, ended = attempts.why_recovering, self._iterations.completed_at
        if self._changing is not None:
            self._changing = why, self._changing[1]
        elif self._iterations.history.last is not None:
            self._changing = why, ended
        self._iterations.record_interrupted(group.iteration, now)
        attempts.end(group.iteration, now)
        self._presence.begin_again(group.iteration, needed)
        group = form_group({name: arrivals[name] for name in members.staying}, self._first_iteration)
        for member in members.by_name.values():
            member.attempt = -1  # who is suspended is told of this attempt once it is heard of, and calls
        for name in group.names:
            members.by_name[name].attempt = members.by_name[name].grouped = number
        attempts.group = replace(group, keep=attempts.keeping, manager=attempts.manager)
        said = f"attempt {number} begins at iteration {group.iteration}, with {len(group.names)} workers"
        source = "" if group.source is None else f" and the state of {group.names[group.source]}"
        self._outbox.log(f"{said}{source}: {why}")
        if needed:
            attempts.want(f"{', '.join(sorted(drained))}: drained once the others have its state")
        return False

    @property
    def waits_for_state(self) -> bool:
        """True if all are there whom the present attempt's group needs, but none has the training's state."""
        return bool(arrivals := self._gathered) and self._lacks_state(arrivals)

    def note_step(self) -> None:
        """Note what the last change has cost, once the first iteration of its group is complete."""
        group, number = self._attempts.group, self._attempts.number
        if self._changing is None or group is None:
            return
        records = self._iterations.history.page(group.iteration, 1)
        if not records:
            return
        (why, ended), self._changing = self._changing, None
        until_step = self._iterations.completed_at - ended
        until_plan = max(0.0, until_step - records[0].duration)
        change = GroupChange(number, group.iteration, len(group.names), why, until_plan, until_step)
        self.changes.append(change)
        self._outbox.tally.group_changes.add(until_step)
        self._outbox.log(
            f"the change to the group of attempt {number} took {until_step:.3g} s from the end of one "
            f"iteration to that of the next, of which {until_plan:.3g} s until this was planned: {why}"
        )

    @property
    def _gathered(self) -> dict[str, Arrival]:
        """The arrivals of all whom the present attempt's group needs, by name; empty while any lacks."""
        if self._presence.awaited_until is not None:
            return {}
        number, staying = self._attempts.number, self._members.staying
        arrivals = {n: m.arrival for n, m in staying.items() if m.arrival and m.has_arrived(number)}
        return arrivals if len(arrivals) == len(staying) else {}

    def _lacks_state(self, arrivals: Mapping[str, Arrival]) -> bool:
        return newest(arrivals.values()) is None and self._iterations.first_open > self._first_iteration

    @property
    def _drained(self) -> set[str]:
        return {name for name, member in self._members.staying.items() if member.is_drained}
