"""Changes of a running job by operators: another policy, batch size or bounds, a drained worker, a pause.

Parts that workers have been given stand; later iterations are planned again. Must not know who asked for a
change, nor with what right.
"""

from collections.abc import Callable
from dataclasses import replace

from batchsize_manager.balancing import Balancing
from batchsize_manager.job.attempts import Attempts
from batchsize_manager.job.effects import Outbox
from batchsize_manager.job.iterations import Iterations
from batchsize_manager.job.members import DRAINED, Member, Members
from batchsize_manager.job.planner import Planner
from batchsize_manager.job.presence import Presence
from batchsize_manager.policies import Policy
from batchsize_manager.sizers import Sizing
from idl.bounds import Bounds
from idl.errors import InvalidRequestError

REPLAYED = 500
"""The number of latest complete iterations that a new policy, or that of a restored job, observes first."""


class Operations:
    """Changes that operators make to a job; each method returns a sentence that says what was done.

    All methods raise `InvalidRequestError` where the change cannot be made, and have changed nothing then.

    Args:
        members: The job's members.
        iterations: The job's iterations.
        planner: The job's planner.
        attempts: The job's attempts.
        presence: The job's changes of membership.
        outbox: Collects the effects.
        advance: Function of the time that completes and plans iterations, called after each change.

    Attributes:
        paused: Whether nothing more is planned until `resume`.
        balancing: The way in which batches are split, where an operator has chosen one; else None.
        sizing: The way in which their size is chosen, likewise.
    """

    def __init__(
        self,
        members: Members,
        iterations: Iterations,
        planner: Planner,
        attempts: Attempts,
        presence: Presence,
        outbox: Outbox,
        advance: Callable[[float], None],
    ) -> None:
        self.paused = False
        self.balancing: Balancing | None = None
        self.sizing: Sizing | None = None
        self._members = members
        self._iterations = iterations
        self._planner = planner
        self._attempts = attempts
        self._presence = presence
        self._outbox = outbox
        self._advance = advance

    def change_policy(self, balancing: Balancing, policy: Policy, what: str, now: float) -> str:
        """Split batches by another policy, which first observes the latest complete iterations.

        Args:
            balancing: The names of the new policy and its predictor.
            policy: The new policy; models of the old one that it was not made with are lost.
            what: The change in words, as "the policy from even to proportional".
            now: The time.
        """
        self._iterations.discard_undelivered()
        self._planner.policy, self.balancing = policy, balancing
        self._presence.changed()
        self._planner.show(self._iterations.history.latest(REPLAYED))
        return self._done(f"changed {what}, {self._from_here}", now)

    def change_batch_size(self, total: int, now: float) -> str:
        """Have batches of another size, each beginning where the one before it has ended.

        Args:
            total: Samples of a whole batch; where the size follows the number of members, for as many
                members as start the job.
            now: The time.
        """
        batches = self._planner.batches
        samples = batches.spec.dataset_size
        if not 1 <= total <= samples:
            raise InvalidRequestError(
                f"total_batch_size {total}: must be from 1 to the dataset's size, {samples}"
            )
        before = batches.total
        if total == before:
            return f"the batch size is {total} already"
        if (sizer := self._planner.sizer.name) != "fixed":
            raise InvalidRequestError(
                f"total_batch_size {total}: the sizer {sizer} chooses it; set the sizer fixed before, "
                f"or give it other bounds"
            )
        staying = len(self._members.staying)
        size = batches.padded(staying, total) if staying else batches.spec.cuts(total).padded
        self._members.check_bounds({}, size, size, complete=self._members.started)
        self._iterations.discard_undelivered()
        batches.total = total
        self._presence.changed()
        return self._done(f"changed the batch size from {before} to {total}, {self._from_here}", now)

    def change_sizing(self, sizing: Sizing, now: float) -> str:
        """Choose the size of batches in another way.

        Args:
            sizing: The sizer and its bounds.
            now: The time.
        """
        sizer, batches = self._planner.sizer, self._planner.batches
        before = sizer.name
        if sizing == sizer.sizing:
            return f"the sizer is {before} already, with the same options"
        sizer.use(sizing)
        self.sizing = sizing
        self._iterations.discard_undelivered()
        self._presence.changed()
        least, most = sizing.bounds(batches.spec)
        said = f", for batches of {least:,} to {most:,} samples" if sizer.adapts else ""
        return self._done(f"changed the sizer from {before} to {sizer.name}{said}, {self._from_here}", now)

    def change_bounds(self, worker: str, bounds: Bounds, now: float) -> str:
        """Give a member other bounds of its share; `at_once` stays as it is."""
        member = self._named(worker)
        bounds = replace(bounds, at_once=member.bounds.at_once)
        bounds = self._planner.batches.spec.narrowed(bounds)
        sizes = self._planner.least_size(), self._planner.padded_size
        self._members.check_bounds({worker: bounds}, *sizes, complete=self._members.started)
        self._iterations.discard_undelivered()
        member.bounds = bounds
        self._presence.changed()
        said = f"{bounds.minimum} to {bounds.maximum} samples, in multiples of {bounds.granularity}"
        return self._done(f"given {worker} {said}, {self._from_here}", now)

    def drain(self, worker: str, now: float) -> str:
        """Release a member after the last part that it was given."""
        member = self._named(worker)
        if self._members.reduce:
            raise InvalidRequestError(
                f"worker {worker!r} cannot be drained: workers that reduce gradients among themselves cannot "
                f"go on without each other"
            )
        if member.leaving:
            return f"{worker} is leaving already"
        if not self._planner.can_do_without({worker}):
            raise InvalidRequestError(
                f"worker {worker!r} cannot be drained: the others cannot take the batch of "
                f"{self._planner.batch_size} samples without it"
            )
        member.leaving = DRAINED
        if self._members.regroups:
            self._iterations.discard_undelivered()
            self._attempts.want(f"{worker} is drained")
            return self._done(f"drained {worker}, {self._from_here}", now)
        if self._attempts.recovering:
            return self._done(f"drained {worker}, {self._from_here}", now)
        self._iterations.discard_undelivered()
        last = self._iterations.planned - 1
        if not self._members.redoes:  # nobody waits for its later parts: the present one is its last
            last = min(member.assigned, last)
            self._iterations.take_from(worker, redo=False, first=last + 1)
        self._members.release({worker: DRAINED}, last)
        self._presence.changed()
        said = self._done(f"drained {worker}, {self._from_here}", now)
        self._outbox.effects.answer = True  # it may wait for a part that it does not get any more
        return said

    def remove(self, worker: str, now: float) -> str:
        """Take out a member at once that an operator knows to be gone; its name is free then."""
        self._named(worker)
        self._presence.remove(worker, "was taken out by an operator, who knows that it is gone", now)
        if self._members:
            self._advance(now)
        return f"an operator has taken {worker} out, which is gone"

    def pause(self, now: float) -> str:
        """Plan nothing more until `resume`."""
        if self.paused:
            return "the job is paused already"
        self._iterations.discard_undelivered()
        self.paused = True
        # With lookahead, members that have more to report wait here for a plan that is not made now.
        self._outbox.effects.answer = True
        return self._done(f"paused the job, {self._from_here}", now)

    def resume(self, now: float) -> str:
        """Go on after `pause`."""
        if not self.paused:
            return "the job is not paused"
        self.paused = False
        return self._done("resumed the job", now)

    # -- within

    @property
    def _from_here(self) -> str:
        """The place where a change takes effect, in words."""
        if self._attempts.recovering:
            return f"from attempt {self._attempts.number} on"
        return f"from iteration {self._iterations.planned} on"

    def _named(self, worker: str) -> Member:
        member = self._members.by_name.get(worker)
        if member is None:
            raise InvalidRequestError(f"there is no worker {worker!r} in this job")
        return member

    def _done(self, what: str, now: float) -> str:
        said = f"an operator has {what}"
        self._outbox.log(said)
        self._advance(now)
        return said
