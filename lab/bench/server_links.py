"""Transfers with a parameter server over links of several speeds, simulated.

The backward pass of a worker has its buckets of gradients ready one after the other, at equal intervals. Each
worker pushes them over a link of its own, one after the other as soon as they are ready, and pulls as much
before its next step, when nothing is computed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.bench.all_reduce import overlapped
from predictors import Array


@dataclass(frozen=True)
class ServerLinks:
    """The links of a cluster's workers to a parameter server."""

    # In which each worker's parameters and gradients are transferred, half of them each; (workers,), above 0.
    seconds: tuple[float, ...]
    buckets: int  # the number of buckets that a gradient is pushed in
    backward: tuple[float, ...]  # as in `AllReduce`

    @property
    def noises(self) -> int:
        """The number of factors that `iterate` takes: one for each link."""
        return len(self.seconds)

    def table(self, worker: int, table: Array, passes: NDArray[np.int64] | int = 1) -> Array:
        """Return the seconds of an iteration by a worker's batch: equation 7 of Cannikin, its own."""
        push = self.seconds[worker] / 2
        last = push / self.buckets + self.seconds[worker] / 2
        communication = push * (1 - 1 / self.buckets) + last
        return overlapped(table, self.backward[worker] / passes, self.buckets, last, communication)

    def iterate(
        self, computing: Array, factors: Array, passes: NDArray[np.int64] | int = 1
    ) -> tuple[float, list[dict[str, float]]]:
        """See `Transfers`; `factors` are those on the seconds of each worker's transfers, (workers,)."""
        measured = []
        for its, share, seconds in zip(
            computing.tolist(),
            (self.backward / np.asarray(passes)).tolist(),
            (factors * self.seconds).tolist(),
            strict=True,
        ):
            each = seconds / 2 / self.buckets
            ready = its * (1 - share * (1 - np.arange(1, self.buckets + 1) / self.buckets))
            busy = end = 0.0
            for moment in ready.tolist():
                before, end = end, max(end, moment) + each
                busy += end - max(before, moment)
            last = end - max(before, moment)
            measured.append(
                {
                    "batch_processing_time": end + seconds / 2,
                    "communication_time": end + seconds / 2 - its,
                    "backward_time": share * its,
                    "first_bucket_time": share * its / self.buckets,
                    "other_buckets_time": busy - last,
                    "last_bucket_time": last + seconds / 2,
                }
            )
        return max(its["batch_processing_time"] for its in measured), measured
