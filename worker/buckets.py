"""Buckets of a gradient, which are sent or summed while the backward pass computes the next ones.

This module knows no framework, and no exchange.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from worker.meter import BackwardTimes


@dataclass(slots=True)
class Bucket:
    """A bucket of gradients that was ready at a moment, in seconds; `done` once the exchange has taken it.

    Attributes:
        done: The moment when it was summed over the ranks or, with a parameter server, written to all shards,
            and the last one answered by all; None before.
    """

    is_last: bool  # whether it is the last one of the pass
    ready: float = field(default_factory=time.perf_counter)  # the moment when its gradients were computed
    done: float | None = None

    def note_done(self) -> None:
        """Note that it is done now; may be called by any thread."""
        self.done = time.perf_counter()


class NoteReady(Protocol):
    """A function that notes that a bucket is ready now, to be sent, and returns it."""

    def __call__(self, *, is_last: bool) -> Bucket:
        """Note a bucket, the last one of its pass or another; buckets are noted in order."""
        ...


def backward_times(begun: float | None, buckets: Sequence[Bucket]) -> BackwardTimes:
    """Return the times of a backward pass; all are unknown where its begin or a bucket's end is.

    So they are where it has a single bucket: then nothing overlaps. DDP takes one for the first pass of any
    model, and forms several after it.

    Args:
        begun: The moment when it began, in seconds; None where that is not known.
        buckets: All its buckets, in the order in which they were ready.
    """
    if begun is None or len(buckets) < 2 or not buckets[-1].is_last:
        return BackwardTimes()
    others = alone = 0.0
    end = begun
    for bucket in buckets:
        if bucket.done is None:
            return BackwardTimes()
        others += alone
        alone = max(0.0, bucket.done - max(bucket.ready, end))  # since all before it were done
        end = max(end, bucket.done)
    return BackwardTimes(buckets[-1].ready - begun, buckets[0].ready - begun, others, alone)
