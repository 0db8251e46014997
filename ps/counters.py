"""Counters of a job's shard, for metrics, and the sink that times the summing; see `rpc.counters`."""

import time
from collections.abc import Callable

import torch

from ps.parameters import Contribution, Parameters
from ps.shard import GradientSink
from rpc.counters import Histogram


class ShardTally:
    """Counters of a job's shard since this process has held it.

    Attributes:
        pushes: Gradients that arrived completely and were used.
        duplicates: Gradients that were dropped, since their samples had been counted.
        pulls: Answers with parameters, or with a slot of the optimiser's state.
        pushed: Bytes of gradients, duplicates included.
        pulled: Bytes of the answers that `pulls` counts.
    """

    def __init__(self) -> None:
        self.pushes = self.duplicates = self.pulls = 0
        self.pushed = self.pulled = 0
        self.aggregation = 0.0  # seconds spent on summing gradients
        self.steps = Histogram()  # seconds of each of the optimiser's steps


class TimedSink(GradientSink):
    """A sink that adds a gradient to a shard and measures how long the adding takes.

    Args:
        contribution: The gradient's place in the batch.
        dtype: Of the elements that arrive.
        tally: The counters that the time is added to.
        added: Called after that.
    """

    def __init__(
        self,
        shard: Parameters,
        contribution: Contribution,
        dtype: torch.dtype,
        tally: ShardTally,
        added: Callable[[], None],
    ) -> None:
        super().__init__(shard, contribution, dtype)
        self._added = added
        # When its first bytes had arrived, on the monotonic clock in nanoseconds.
        self.began = time.monotonic_ns()
        self._tally = tally

    def advance(self, count: int) -> None:
        """Add the piece to the shard once it is full, and the time of that to the counters."""
        began = time.perf_counter()
        super().advance(count)
        self._tally.aggregation += time.perf_counter() - began
        self._added()
