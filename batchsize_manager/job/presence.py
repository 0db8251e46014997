"""Changes of a job's membership: members fall silent, return and go, and others redo their parts.

Must not know of deadlines: `deadlines` finds the members that are dead or unresponsive.
"""

from math import inf

from batchsize_manager.job.attempts import Attempts
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.effects import Outbox
from batchsize_manager.job.iterations import Iterations
from batchsize_manager.job.members import DRAINED, Member, Members
from batchsize_manager.job.planner import Planner
from batchsize_manager.policies.solver import InfeasibleError
from idl.errors import InvalidRequestError


class Presence:
    """Changes of a job's membership, each of which leaves members, iterations and planner consistent.

    Args:
        config: The job's configuration.
        iterations: The job's iterations.
        outbox: Collects the effects.

    Attributes:
        awaited_until: The time until which the job waits for more members, as the present ones cannot take a
            whole batch; None if they can.
        may_return: Whether a member that was cut off may come back yet, with the state that it has, where the
            manager forms the members' group; else False.
    """

    def __init__(
        self,
        config: JobConfig,
        members: Members,
        iterations: Iterations,
        planner: Planner,
        attempts: Attempts,
        outbox: Outbox,
    ) -> None:
        self.awaited_until: float | None = None
        self.may_return = False
        self._config = config
        self._members = members
        self._iterations = iterations
        self._planner = planner
        self._attempts = attempts
        self._outbox = outbox

    def hear(self, worker: str, incarnation: str, now: float) -> Member:
        """Note that a worker has called; one that counted as dead since its connection broke returns.

        Raises:
            NotMemberError: The worker is no member.
            UnavailableError: It would return, but there is room for it only if some members go.
        """
        self.take_back(worker, incarnation, now)
        member = self._members.known(worker, incarnation)
        member.heard_at = now
        member.back_by, member.is_returning = None, False
        return member

    def take_back(self, worker: str, incarnation: str, now: float) -> None:
        """Make a worker a member again that counted as dead since its connection broke, if it is one.

        Raises:
            UnavailableError: There is room for it only if some members go.
        """
        cut_off = self._members.returning(worker, incarnation, now - self._config.absence)
        if cut_off is not None:
            self._take_back(worker, cut_off, now)

    def look_for_returning(self, now: float) -> None:
        """Note whether a member that was cut off may come back yet, with the state that it alone may have."""
        members = self._members
        if members.has_formed_groups and members.started:
            self.may_return = bool(members.away(now - self._config.return_grace))

    def changed(self) -> None:
        """Have the planner plan for the present members; the job fails if they cannot take a whole batch."""
        if self.awaited_until is not None and not self._planner.can_do_without(()):
            return
        self.awaited_until = None
        try:
            self._planner.members_changed()
        except InfeasibleError as error:
            self._attempts.failure = str(error)

    def remove(self, worker: str, why: str, now: float, by: float = -inf) -> None:
        """Take a member out of the job; the parts that it leaves undone are redone by others, or lost.

        Args:
            why: The reason, which follows the name in the job's log: "left".
            by: The time at which others that wait for its part of a reduction have to go on without it.
        """
        redoes, recovers = self._members.redoes, self._members.recovers
        if self._attempts.is_grouped(self._members.by_name[worker]):
            self._attempts.want(f"{worker} {why}", by)
        self._members.remove(worker)
        self._outbox.tally.gone += 1
        self._outbox.log(f"{worker} {why}", worker)
        waits = self.awaited_until is not None
        if self._members.started and recovers and not waits and not self._planner.can_do_without(()):
            self.awaited_until = now + self._config.keep
            if self._members:
                self._outbox.log(f"{self._planner.lack}: others are awaited for {self._config.keep:g} s")
        self._iterations.discard_undelivered()
        self._iterations.take_from(worker, redo=redoes)
        if self._members:
            self._hold_back()
            self.changed()

    def suspend(self, worker: str) -> bool:
        """Let the others do a silent member's part, if they can.

        Returns:
            Whether they can.
        """
        if not self._planner.can_do_without({worker}):
            return False
        self._members.by_name[worker].suspended = True
        self._outbox.tally.suspended += 1
        self._outbox.log(f"{worker} is silent; the others do its part meanwhile", worker)
        self._iterations.discard_undelivered()
        self._iterations.take_from(worker, redo=self._members.redoes)
        self._attempts.want(f"{worker} is silent", -inf)
        self.changed()
        return True

    def welcome(self, worker: str, member: Member, now: float, iteration: int | None = None) -> bool:
        """Plan for a suspended member again.

        Args:
            iteration: The iteration that its present call reports, if any.

        Returns:
            Whether it goes on with its old parts, since nobody else has got them yet. With lookahead, another
            attempt begins where a later iteration was planned without it meanwhile.
        """
        member.suspended = False
        member.joined_at = now
        self._outbox.log(f"{worker} is back", worker)
        self._iterations.discard_undelivered()
        goes_on = self._iterations.reinstate(worker)
        if goes_on and self._members.redoes and self._iterations.has_one_without(worker):
            # The others, which have begun that one, need this member's next calls, for which it waits itself.
            self._attempts.begin(f"{worker} is back, and has no part of a later iteration")
            goes_on = False
        if not goes_on:
            planned = self._iterations.planned
            if iteration not in self._iterations.progress:
                member.ready = planned
            member.go_on_at(planned)
        self._attempts.want(f"{worker} is back")
        self.changed()
        return goes_on

    def begin_again(self, iteration: int, needed: bool = False) -> None:
        """Let all members go on at an iteration after a recovery; release the drained ones if possible.

        Args:
            iteration: The iteration.
            needed: Whether the drained ones stay drained, but until they have given their state to others.
        """
        drained = [name for name, member in self._members.by_name.items() if member.is_drained]
        for name, member in self._members.by_name.items():
            member.begin_at(iteration)
            member.last = None
            if not (needed and name in drained):
                member.leaving = ""
        if needed:
            pass
        elif self._planner.can_do_without(drained):
            self._members.release(dict.fromkeys(drained, DRAINED), iteration - 1)
        else:
            for name in drained:
                self._log_retained(name)
        self.changed()

    def _log_retained(self, worker: str) -> None:
        said = f"{worker} stays, since the others cannot take the batch without it any more"
        self._outbox.log(said, worker)

    def _hold_back(self) -> None:
        """Keep the members that are leaving if the others cannot take a whole batch without them."""
        leaving = [name for name, member in self._members.by_name.items() if member.last is not None]
        if not leaving or not self._members.redoes or self._attempts.is_recovering:
            return
        if self._planner.can_do_without(()):
            return
        for name in leaving:
            member = self._members.by_name[name]
            member.last, member.leaving = None, ""
            self._log_retained(name)
        self._attempts.begin("those who were leaving have to stay")

    def _take_back(self, worker: str, member: Member, now: float) -> None:
        """Make a worker that was cut off a member again; it is suspended until it asks for work.

        Where others have its place, it is released: it learns so when it asks to join again.
        """
        # For the batch of all members, suspended ones included: it is the one once all are planned for again.
        cuts = self._planner.batches.cuts(len(self._members) + 1)
        try:
            self._members.check_room(worker, member.incarnation, member.bounds, cuts, now)
        except InvalidRequestError as error:
            self._members.dismiss(worker, member.incarnation, f"others have its place: {error}")
            return
        self._attempts.begin_if_deserted()
        member.suspended, member.back_by, member.heard_at = True, None, now
        member.arrival = None  # its call went with the connection
        self._members.take_back(worker, member)
        self._outbox.log(f"{worker} had not died; it is a member again", worker)
