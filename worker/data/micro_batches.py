"""The micro-batches of a worker's slice, with the seeds that their random numbers come from.

This module knows plans, and no framework and no wire.
"""

from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from idl.plan import Assignment, JobSpec

_NUMBERS = Struct("<4Q")


class Draws(IntEnum):
    """A purpose that random numbers are drawn for; each has numbers of its own."""

    LOADING = 0
    COMPUTING = 1
    AFTER = 2  # a batch's micro-batches: what the script draws until the next batch, in a callback, say
    BEFORE = 3  # a batch's micro-batches: what the script draws once it has the batch


@dataclass(frozen=True)
class MicroBatch:
    """Samples that are computed together, with the same result on whichever worker."""

    position: int  # the epoch's position of its first sample
    indices: NDArray[np.int64]  # indices of its samples in the data set, (n,)
    count: int  # samples that its gradient is weighted by: n, or 0 where the worker has no part in the batch
    spec: JobSpec  # the data that the job trains on
    epoch: int  # the epoch's number

    def seed(self, draws: Draws) -> int:
        """Return the seed of its random numbers for a purpose, from 0 to 2^63 - 1."""
        return _seed(self.spec, self.epoch, self.position, draws)


def batch_seed(spec: JobSpec, assignment: Assignment, draws: Draws) -> int:
    """Return the seed, from 0 to 2^63 - 1, of what is drawn for a whole batch.

    Args:
        assignment: Any worker's assignment of a part of the batch.
        draws: Before its micro-batches, or after them.
    """
    return _seed(spec, assignment.epoch, assignment.batch_begin, draws)


def micro_batches_of(
    spec: JobSpec, order: NDArray[np.int64], assignment: Assignment, batch: NDArray[np.int64] | None = None
) -> list[MicroBatch]:
    """Return the micro-batches of an assignment; where it has no samples, a whole one without weight.

    Args:
        spec: The data that the job trains on, with micro-batches.
        order: The epoch's permutation, (dataset_size,).
        batch: The whole batch's samples where they are in another order, (total,); None: as in `order`.

    Raises:
        ValueError: The assignment does not begin and end on cuts.
    """
    if not assignment.count:
        size = spec.micro_batch or 1
        start = min(assignment.start, max(0, len(order) - size))
        return [MicroBatch(start, order[start : start + size], 0, spec, assignment.epoch)]
    begin = assignment.batch_begin
    cuts = spec.cuts(assignment.total)
    samples = order[begin : begin + assignment.total] if batch is None else batch
    return [
        MicroBatch(begin + first, samples[first:stop], stop - first, spec, assignment.epoch)
        for first, stop in cuts.within(assignment.start - begin, assignment.end - begin)
    ]


def _seed(spec: JobSpec, epoch: int, position: int, draws: Draws) -> int:
    """Return a seed that depends on the job's seed, an epoch, a position there and a purpose alone."""
    digest = blake2b(_NUMBERS.pack(spec.seed, epoch, position, draws), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
