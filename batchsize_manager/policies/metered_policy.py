"""A policy whose computing time is measured; policies themselves, and jobs, have no clock."""

import time
from collections.abc import Mapping

from batchsize_manager.counters import LearningTally
from batchsize_manager.policies import Policy
from batchsize_manager.policies.base import PolicyWrapper, Split
from idl.records import WorkerRecord


class MeteredPolicy(PolicyWrapper):
    """A wrapper that measures how long another policy takes.

    Args:
        tally: The histograms that the durations in seconds are added to.
    """

    def __init__(self, policy: Policy, tally: LearningTally) -> None:
        super().__init__(policy)
        self._tally = tally

    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Pass on `Policy.observe`, and count its duration."""
        began = time.perf_counter()
        self.policy.observe(observations)
        self._tally.observations.add(time.perf_counter() - began)

    def split(self, total: int) -> Split:
        """Pass on `Policy.split`, and count its duration."""
        began = time.perf_counter()
        split = self.policy.split(total)
        self._tally.splits.add(time.perf_counter() - began)
        return split
