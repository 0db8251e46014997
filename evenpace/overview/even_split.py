"""What iterations would have taken with equal batch sizes, estimated from what they took with others.

Assumed is that

- a worker's time for a batch follows its time curve, which is fitted as the policy `learned` fits it
  (`batchsize_manager.policies.curves`), times a factor that changes from iteration to iteration, with its
  hardware, its contention and by chance. So the time that it would have taken for an even share is its
  measured time, times what the curve has for the even share over what it has for the batch. What chance
  brought, it would have brought with an even split as well;
- what an iteration took beyond its slowest worker's batch processing time (barrier, manager) would have
  been the same; and
- every worker could take an even share: bounds are not known here.

So with the curves known the estimate is exact, whatever the noise. How well they are known, the fit says.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.curves import Curves
from evenpace.overview.statistics import Array

_EVENLY = 1.0  # samples off an even share that rounding explains


def with_even_shares(sizes: Array, times: Array, curves: Curves) -> Array:
    """The batch processing times that even shares would have brought.

    Args:
        sizes: (..., workers) samples; NaN: took no part.
        times: Likewise, seconds.
        curves: (workers,).

    Returns:
        (..., workers) seconds; NaN where a worker had no sample. Where its share was even, its time.
    """
    busy = (sizes > 0) & (times > 0)
    return np.where(busy, _with_shares(_even_shares(sizes), sizes, times, curves, busy), np.nan)


def even_durations(durations: Array, sizes: Array, times: Array, cases: Sequence[Curves]) -> Array:
    """What iterations would have taken.

    Who had no sample in one is taken to be as fast as when it last had any.

    Args:
        durations: That they took, seconds, (iterations,).
        sizes: Samples, (iterations, workers); NaN: took no part.
        times: Batch processing times, likewise.
        cases: Curves that may be the workers', (workers,) each.

    Returns:
        (cases, iterations) seconds; NaN where that is not known. Where shares were even, what they took.
    """
    shares = _even_shares(sizes)
    slowest = np.nan_to_num(times).max(axis=1, initial=0.0)
    busy = (sizes > 0) & (times > 0)
    idle = ~busy & ~np.isnan(sizes)
    if idle.any():
        rows = np.where(busy, np.arange(len(sizes))[:, None], 0)
        last = np.maximum.accumulate(rows, axis=0)
        sizes, times, busy = (
            np.where(idle, np.take_along_axis(each, last, axis=0), each) for each in (sizes, times, busy)
        )
    longest = np.array(
        [_with_shares(shares, sizes, times, case, busy).max(axis=1, initial=0.0) for case in cases]
    )
    known = (durations > 0) & (slowest > 0) & (longest > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Where workers are ahead of each other, iterations overlap, and take less than the slowest.
        found = np.where(durations < slowest, durations * longest / slowest, durations + (longest - slowest))
    return np.where(known, found, np.nan)


def _with_shares(shares: Array, sizes: Array, times: Array, curves: Curves, busy: NDArray[np.bool_]) -> Array:
    """Times with these shares, (..., 1), instead of others; 0 for who is not busy."""
    # No change is no error, either.
    sizes = np.where(busy & (np.abs(sizes - shares) >= _EVENLY), sizes, shares)
    return np.asarray(np.where(busy, times, 0.0) * (curves.fitted(shares) / curves.fitted(sizes)))


def _even_shares(sizes: Array) -> Array:
    """(..., 1) samples; 0 where nobody took part."""
    there = ~np.isnan(sizes)
    workers = np.maximum(there.sum(axis=-1, keepdims=True), 1)
    return np.asarray(np.where(there, sizes, 0.0).sum(axis=-1, keepdims=True) / workers)
