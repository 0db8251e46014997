"""Counts of what a job's shard has done, for metrics, and the sink that times sums; see `rpc.counters`."""

import time

from ps.parameters import Contribution, Parameters
from ps.shard import GradientSink
from rpc.counters import Histogram


class ShardTally:
    """What the shard of a job has done since this process has held it.

    Attributes:
        pushes: Gradients that came as a whole and were needed.
        duplicates: Gradients that were dropped, since what they bring was there.
        pulls: Answers with parameters, or with a slot of the optimiser's state.
        pushed: Bytes of gradients, of the duplicates, too.
        pulled: Bytes of these answers.
        aggregation: Seconds spent on sums of gradients.
        steps: Seconds that the optimiser's steps took.
    """

    def __init__(self) -> None:
        self.pushes = self.duplicates = self.pulls = 0
        self.pushed = self.pulled = 0
        self.aggregation = 0.0
        self.steps = Histogram()


class TimedSink(GradientSink):
    """Takes a gradient into a shard, and the time that this needs.

    Args:
        shard: Where to.
        contribution: Which gradient.
        tally: Where it is counted.

    Attributes:
        began: When its first bytes had come, on the monotonic clock in nanoseconds.
    """

    def __init__(self, shard: Parameters, contribution: Contribution, tally: ShardTally) -> None:
        super().__init__(shard, contribution)
        self.began = time.monotonic_ns()
        self._tally = tally

    def advance(self, count: int) -> None:
        """Add the piece once it is full."""
        began = time.perf_counter()
        super().advance(count)
        self._tally.aggregation += time.perf_counter() - began
