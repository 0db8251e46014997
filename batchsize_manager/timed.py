"""A policy whose time is taken: policies themselves, and the jobs that ask them, know no clock."""

import time
from collections.abc import Mapping, Sequence

from batchsize_manager.policies import Observation, Policy
from batchsize_manager.policies.base import Member, Split
from batchsize_manager.tally import LearningTally
from predictors import Fit, Models, Weights


class TimedPolicy(Policy):
    """Does what another policy does, and counts how long that took.

    Args:
        policy: The other.
        tally: Where it is counted.
    """

    def __init__(self, policy: Policy, tally: LearningTally) -> None:
        self._policy = policy
        self._tally = tally

    def set_members(self, members: Sequence[Member]) -> None:
        """See `Policy`."""
        self._policy.set_members(members)

    def expect(self, total: int) -> None:
        """See `Policy`."""
        self._policy.expect(total)

    def observe(self, observations: Mapping[str, Observation]) -> None:
        """See `Policy`."""
        began = time.perf_counter()
        self._policy.observe(observations)
        self._tally.observations.add(time.perf_counter() - began)

    def split(self, total: int) -> Split:
        """See `Policy`."""
        began = time.perf_counter()
        split = self._policy.split(total)
        self._tally.splits.add(time.perf_counter() - began)
        return split

    def due_fit(self) -> Fit | None:
        """See `Policy`."""
        return self._policy.due_fit()

    def take_fit(self, weights: Weights | None) -> None:
        """See `Policy`."""
        self._policy.take_fit(weights)

    def models(self) -> Models:
        """See `Policy`."""
        return self._policy.models()
