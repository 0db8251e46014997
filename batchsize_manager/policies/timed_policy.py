"""A policy whose time is taken: policies themselves, and the jobs that ask them, know no clock."""

import time
from collections.abc import Mapping

from batchsize_manager.counters import LearningTally
from batchsize_manager.policies import Observation, Policy
from batchsize_manager.policies.base import Around, Split


class TimedPolicy(Around):
    """Counts how long another policy takes.

    Args:
        policy: The other.
        tally: Where it is counted.
    """

    def __init__(self, policy: Policy, tally: LearningTally) -> None:
        super().__init__(policy)
        self._tally = tally

    def observe(self, observations: Mapping[str, Observation]) -> None:
        """See `Policy`."""
        began = time.perf_counter()
        self.policy.observe(observations)
        self._tally.observations.add(time.perf_counter() - began)

    def split(self, total: int) -> Split:
        """See `Policy`."""
        began = time.perf_counter()
        split = self.policy.split(total)
        self._tally.splits.add(time.perf_counter() - began)
        return split
