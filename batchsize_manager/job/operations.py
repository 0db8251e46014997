"""What an operator does to a running job: another policy, batch size or bounds, a drained worker, a pause.

Whatever was given to a worker stands; what follows is planned anew. Each method answers, in words, what was
done. Who asked, and whether he may, is not known here.
"""

from batchsize_manager.job.members import Member
from batchsize_manager.job.steps import DRAINED, JobSteps
from batchsize_manager.policies import Policy
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from predictors import Fit, Models, Weights

REPLAYED = 500  # iterations that the policy of a job that goes on is shown


class JobOperations(JobSteps):
    """See `batchsize_manager.job.job.Job`, which is one.

    All methods that change something raise `InvalidRequestError` where that cannot be, and have changed
    nothing then.
    """

    # -- the policy, and what it learns elsewhere

    @property
    def policy(self) -> Policy:
        """How batches are split now."""
        return self._policy

    def change_policy(self, policy: Policy, what: str, now: float) -> str:
        """Split batches otherwise; the new policy is shown what the last iterations were like.

        Args:
            policy: The new one; what is in `models` and not in its own is forgotten.
            what: Is changed, in words.
            now: The time.
        """
        self._iterations.discard_undelivered()
        self._policy = self._planner.policy = policy
        self._members_changed()
        self._show(policy, self._iterations.history.latest(REPLAYED))
        return self._done(f"changed {what}, {self._from_here}", now)

    def due_fit(self) -> Fit | None:
        """Learning that is to be done now; see `predictors.Predictor`."""
        return self._policy.due_fit()

    def take_fit(self, policy: Policy, weights: Weights | None) -> None:
        """What the fit that a policy handed out last has learnt, or None where it failed.

        If that policy has been replaced, nothing is made of it.
        """
        if policy is self._policy:
            policy.take_fit(weights)

    def models(self) -> Models:
        """What has been learnt so far; see `Remembering`."""
        return self._policy.models()

    # -- the batch, and who takes what of it

    @property
    def total(self) -> int:
        """The samples of a whole batch; where that follows the number of members, of the first `workers`."""
        return self._batches.total

    def change_batch_size(self, total: int, now: float) -> str:
        """Have batches of another size, each beginning where the one before it has ended.

        Args:
            total: Samples; where the size follows the number of members, of as many as start the job.
            now: The time.
        """
        if not 1 <= total <= self.spec.dataset_size:
            raise InvalidRequestError(
                f"total_batch_size {total}: must be from 1 to the dataset's size, {self.spec.dataset_size}"
            )
        before = self._batches.total
        if total == before:
            return f"the batch size is {total} already"
        size = self._batches.size(len(self._members.staying) or self._config.workers, total)
        self._members.check_bounds({}, size, complete=self.started)
        self._iterations.discard_undelivered()
        self._batches.total = total
        self._members_changed()
        return self._done(f"changed the batch size from {before} to {total}, {self._from_here}", now)

    def change_bounds(self, worker: str, bounds: Bounds, now: float) -> str:
        """Give a member batch sizes between others."""
        member = self._named(worker)
        self._members.check_bounds({worker: bounds}, self._planner.batch_size, complete=self.started)
        self._iterations.discard_undelivered()
        member.bounds = bounds
        self._members_changed()
        said = f"{bounds.minimum} to {bounds.maximum} samples, in multiples of {bounds.granularity}"
        return self._done(f"given {worker} {said}, {self._from_here}", now)

    def drain(self, worker: str, now: float) -> str:
        """Let a member finish what it was given, then release it."""
        member = self._named(worker)
        if member.unreleasable or self._reduces:
            raise InvalidRequestError(
                f"worker {worker!r} cannot be drained: workers that reduce gradients among themselves cannot "
                f"go on without each other"
            )
        if member.drained or member.last is not None:
            return f"{worker} is leaving already"
        if not self._planner.can_do_without({worker}):
            raise InvalidRequestError(
                f"worker {worker!r} cannot be drained: the others cannot take the batch of "
                f"{self._planner.batch_size} samples without it"
            )
        member.drained = True
        if self._recovering:
            return self._done(f"drained {worker}, {self._from_here}", now)
        self._iterations.discard_undelivered()
        last = self._iterations.planned - 1
        if self._mode != "bsp":  # where each goes its own way: what it does now
            last = min(member.assigned, last)
            self._iterations.take_from(worker, redo=False, first=last + 1)
        self._members.release({worker: DRAINED}, last)
        self._members_changed()
        said = self._done(f"drained {worker}, {self._from_here}", now)
        self.news += 1  # it may wait for what it is not given any more
        return said

    def pause(self, now: float) -> str:
        """Plan nothing more until `resume`."""
        if self.paused:
            return "the job is paused already"
        self._iterations.discard_undelivered()
        self.paused = True
        self.news += 1  # where it is planned ahead, members wait with reports for what is not planned now
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
        """Where what is planned from now on begins, in words."""
        if self._recovering:
            return f"from attempt {self.attempt} on"
        return f"from iteration {self._iterations.planned} on"

    def _named(self, worker: str) -> Member:
        member = self._members.by_name.get(worker)
        if member is None:
            raise InvalidRequestError(f"there is no worker {worker!r} in this job")
        return member

    def _done(self, what: str, now: float) -> str:
        said = f"an operator has {what}"
        self._say(said)
        self._advance(now)
        return said
