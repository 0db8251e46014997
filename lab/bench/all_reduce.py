"""An all-reduce in buckets that overlaps with the backward pass, simulated (Cannikin, section 3.2).

The backward pass of a worker has its buckets of gradients ready one after the other, at equal intervals. A
bucket is summed once all workers have it ready and the one before it is summed; each takes equally long.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictors import Array


def overlapped(
    table: Array, backward: Array | float, buckets: int, last: float, communication: float
) -> Array:
    """Return the seconds of an iteration by the batch of one worker: equation 7 of Cannikin.

    Args:
        table: Seconds that it computes for, by batch size; (sizes,).
        backward: Share of them that is the backward pass, or its shares, (sizes,).
        buckets: Number of buckets, 1 / γ.
        last: T_u, the seconds of the last bucket.
        communication: T_comm, the seconds of all buckets.
    """
    starts = table * (1 - backward * (1 - 1 / buckets))
    return np.maximum(table + last, starts + communication)


@dataclass(frozen=True)
class AllReduce:
    """The sum of gradients over the workers of a cluster."""

    seconds: float  # T_comm, the seconds in which all buckets are summed; above 0
    buckets: int  # their number, of which 1 / γ = `buckets`, and T_u = `seconds` / `buckets`
    # Share of each worker's step that is its backward pass, (workers,); in micro-batches, of each one's time.
    backward: tuple[float, ...]

    @property
    def noises(self) -> int:
        """The number of factors that `iterate` takes."""
        return 1

    def table(self, worker: int, table: Array, passes: NDArray[np.int64] | int = 1) -> Array:
        """Return the seconds of an iteration by a worker's batch: equation 7 of Cannikin."""
        each = self.seconds / self.buckets
        return overlapped(table, self.backward[worker] / passes, self.buckets, each, self.seconds)

    def iterate(
        self, computing: Array, factors: Array, passes: NDArray[np.int64] | int = 1
    ) -> tuple[float, list[dict[str, float]]]:
        """See `Transfers`; `factors` is the factor on the seconds of the reductions, (1,)."""
        backward = np.array(self.backward) * computing / passes
        each = float(factors[0]) * self.seconds / self.buckets
        parts = np.arange(1, self.buckets + 1) / self.buckets
        # (workers, buckets)
        ready = (computing - backward)[:, None] + backward[:, None] * parts
        summed = np.zeros(self.buckets)
        end = 0.0
        for bucket, all_ready in enumerate(ready.max(axis=0).tolist()):
            summed[bucket] = end = max(end, all_ready) + each
        before = np.concatenate([[0.0], summed[:-1]])
        alone = summed - np.maximum(ready, before)  # since all before it were summed
        measured = [
            {
                "backward_time": float(its),
                "first_bucket_time": float(its / self.buckets),
                "other_buckets_time": float(seconds[:-1].sum()),
                "last_bucket_time": float(seconds[-1]),
            }
            for its, seconds in zip(backward, alone, strict=True)
        ]
        return end, measured
