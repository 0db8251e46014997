"""Models of step times as time curves, so that a batch can be split over devices of several kinds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.solver import fill_to_level
from scheduler.throughput import Throughput


class ThroughputCurves:
    """The iterations of a job's replicas as the `TimeCurves` of `split_evenly_in_time`.

    A replica's gradient takes the time of its own kind. All synchronise together, as slowly as the slowest
    kind; how much of that a replica hides behind its gradient is its own kind's (Pollux, (8), (9), (11)).
    """

    def __init__(self, models: Sequence[Throughput], nodes: int) -> None:
        """Make the curves.

        Args:
            models: Of each replica's kind of devices, (replicas,).

        Raises:
            ValueError: There is no node, or there are more than replicas.
        """
        replicas = len(models)
        if not 1 <= nodes <= replicas:
            raise ValueError(f"{replicas} replicas on {nodes} nodes: there must be at least one on each node")
        self._models = models
        self._sync = max(float(model.sync_seconds(nodes, replicas)) for model in models)

    def time(self, worker: int, count: int) -> float:
        """Return the seconds of one replica's iteration; see `TimeCurves.time`."""
        model = self._models[worker]
        return float(model.together(model.gradient_seconds(count), self._sync))

    def fill(self, total: int, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return counts just below the best split; see `TimeCurves.fill`."""
        return fill_to_level(self.time, self._within, total, low, high)

    def _within(self, level: float) -> NDArray[np.float64]:
        """Return the most samples of each replica in a time, (replicas,)."""
        samples: list[float] = []
        for model in self._models:
            ratio = min(self._sync / level, 1.0)
            gradient = level * (1 - ratio**model.overlap) ** (1 / model.overlap)
            left = gradient - model.gradient_base
            samples.append(left / model.gradient_per_sample if model.gradient_per_sample > 0 else np.inf)
        return np.array([max(count, 0.0) for count in samples])
