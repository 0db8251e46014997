"""Changes of a running job by operators: another policy, batch size, bounds or number of workers, a pause.

Parts that workers have been given stand; later iterations are planned again. Must not know who asked for a
change, nor with what right.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from batchsize_manager.balancing import Balancing
from batchsize_manager.job.attempts import Attempts
from batchsize_manager.job.effects import Outbox
from batchsize_manager.job.history import typical_speeds
from batchsize_manager.job.iterations import Iterations
from batchsize_manager.job.members import DRAINED, Member, Members
from batchsize_manager.job.planner import Planner
from batchsize_manager.job.presence import Presence
from batchsize_manager.policies import Policy
from batchsize_manager.sizers import Sizing
from idl.bounds import Bounds
from idl.errors import InvalidRequestError

_MEASURED = 20  # latest iterations whose median speeds say which workers are slow

REPLAYED = 500
"""The number of latest complete iterations that a new policy, or that of a restored job, observes first."""


class Operations:
    """Changes that operators make to a job; each method returns a sentence that says what was done.

    All methods raise `InvalidRequestError` where the change cannot be made, and have changed nothing then.

    Args:
        iterations: The job's iterations.
        presence: The job's changes of membership.
        outbox: Collects the effects.
        advance: Function of the time that completes and plans iterations, called after each change.
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
        self.paused = False  # whether nothing more is planned until `resume`
        # The way in which batches are split, where an operator has chosen one; else None.
        self.balancing: Balancing | None = None
        self.sizing: Sizing | None = None  # the way in which their size is chosen, likewise
        self._members = members
        self._iterations = iterations
        self._planner = planner
        self._attempts = attempts
        self._presence = presence
        self._outbox = outbox
        self._advance = advance

    @property
    def plans_nothing(self) -> bool:
        """True if the job is paused, and its workers have no state to write down before."""
        return self.paused and not self._attempts.keeping

    def change_policy(self, balancing: Balancing, policy: Policy, what: str, now: float) -> str:
        """Split batches by another policy, which first observes the latest complete iterations.

        Args:
            balancing: The names of the new policy and its predictor.
            policy: The new policy; models of the old one that it was not made with are lost.
            what: The change in words, as "the policy from even to proportional".
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
        if self._members.has_fixed_group:
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
        self._release([worker])
        return self._drained(f"drained {worker}, {self._from_here}", now)

    def resize(self, workers: int, drained: Sequence[str], now: float) -> str:
        """Have another number of members: release those that are too many, all at once, or await others.

        Members that are leaving already do not count. A job that has not started starts with this number.

        Args:
            drained: The names of members to release first, if any have to go. Then silent ones go, and those
                that were cut off, then those that were not measured yet, then the slowest; of equals, the
                one that joined last.
        """
        members = self._members
        if members.has_fixed_group:
            raise InvalidRequestError(
                f"workers {workers}: the job's workers all-reduce in a group that something else has formed, "
                f"such as torchrun, which nobody can leave or join; start the job again with {workers}"
            )
        present = [name for name, member in members.by_name.items() if not member.leaving]
        leaving = self._that_leave(present, workers, drained)
        self._check_size(workers, len(present), leaving)
        before, members.chosen = members.wanted, workers
        what = f"resized the job from {before} to {workers} workers"
        if leaving:
            self._release(leaving)
            what += f", and drained {', '.join(leaving)}, {self._from_here}"
        elif workers > len(present):
            what += f", of whom {workers - len(present)} {_are(workers - len(present))} awaited"
        if not members.started:
            self._presence.changed()  # it may start with those who are there
        return self._drained(what, now)

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

    def keep(self, now: float) -> str:
        """Plan nothing more until `resume`, once the workers have written down what they alone have.

        A group is formed for that, of whose members one writes; where it dies, another group is.
        """
        members, attempts = self._members, self._attempts
        if not members.has_formed_groups:
            raise InvalidRequestError("the state cannot be written down: the manager does not form the group")
        if not members.started:
            raise InvalidRequestError("there is no state to be written down: the job has not begun")
        if attempts.keeping:
            return "the workers are writing their state down already"
        self._iterations.discard_undelivered()
        self.paused = attempts.keeping = True
        attempts.want("the workers' state is to be written down")
        return self._done("paused the job, once its workers have written their state down", now)

    def resume(self, now: float) -> str:
        """Go on after `pause` or `keep`."""
        if not self.paused:
            return "the job is not paused"
        self.paused = self._attempts.keeping = False
        return self._done("resumed the job", now)

    # -- within

    @property
    def _from_here(self) -> str:
        """The place where a change takes effect, in words."""
        if self._attempts.is_recovering:
            return f"from attempt {self._attempts.number} on"
        return f"from iteration {self._iterations.planned} on"

    def _that_leave(self, present: Sequence[str], workers: int, drained: Sequence[str]) -> list[str]:
        """Return the names of the members that leave if `workers` of those `present` stay; see `resize`."""
        for name in drained:
            if self._named(name).leaving:
                raise InvalidRequestError(f"worker {name!r} is leaving already")
        many = max(0, len(present) - workers)
        named = list(dict.fromkeys(drained))
        if len(named) > many:
            raise InvalidRequestError(
                f"drain {', '.join(named)}: of {len(present)} workers {many or 'none'} would leave for "
                f"{workers} to stay; name no more than that"
            )
        speeds = typical_speeds(self._iterations.history.latest(_MEASURED))
        rank = {name: i for i, name in enumerate(present)}
        known = self._members.by_name

        def order(name: str) -> tuple[bool, float, int]:
            is_heard = not known[name].suspended and known[name].back_by is None
            return is_heard, speeds.get(name, 0.0), -rank[name]

        return [*named, *sorted(set(present) - set(named), key=order)][:many]

    def _check_size(self, workers: int, present: int, leaving: Collection[str]) -> None:
        """Check that a number of members can take a batch, and that each of them can have a part of it."""
        planner, batches = self._planner, self._planner.batches
        minima = [m.bounds.minimum for n, m in self._members.by_name.items() if n not in leaving]
        newcomers = max(0, workers - present)
        total = batches.padded(workers)
        if sum(minima) + newcomers * batches.spec.unit > total:
            raise InvalidRequestError(
                f"workers {workers}: a batch of {total} samples is too small for so many, with "
                f"{batches.spec.unit} at least for each newcomer and the bounds of those present"
            )
        if workers <= present and not planner.can_do_without(leaving):
            raise InvalidRequestError(
                f"workers {workers}: those that stay cannot take the batch of {planner.batch_size} samples "
                f"without {', '.join(leaving) or 'others'}"
            )

    def _release(self, workers: Sequence[str]) -> None:
        """Release members after the last part that each of them was given, all at once."""
        members, iterations = self._members, self._iterations
        for worker in workers:
            members.by_name[worker].leaving = DRAINED
        if members.has_formed_groups:
            iterations.discard_undelivered()
            self._attempts.want(f"{', '.join(workers)} {_are(len(workers))} drained")
            return
        if self._attempts.is_recovering:
            return
        iterations.discard_undelivered()
        for worker in workers:
            last = iterations.planned - 1
            if not members.redoes:  # nobody waits for its later parts: the present one is its last
                last = min(members.by_name[worker].assigned, last)
                iterations.take_from(worker, redo=False, first=last + 1)
            members.release({worker: DRAINED}, last)
        self._presence.changed()

    def _drained(self, what: str, now: float) -> str:
        said = self._done(what, now)
        self._outbox.effects.answer = True  # they may wait for parts that they do not get any more
        return said

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


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
