"""Estimates of the times that iterations would have taken with equal batch sizes.

They follow from the times that the iterations took with the batch sizes they had. Assumed is that

- a worker's time for a batch follows its time curve, which is fitted as the policy `learned` fits it
  (`batchsize_manager.policies.curves`), times a factor that changes from iteration to iteration, with its
  hardware, its contention and by chance. So the time that it would have taken for an even share is its
  measured time, times the curve's time for the even share over the curve's time for the batch; chance is
  taken to act alike on both;
- the time that an iteration took beyond its slowest worker's batch processing time (barrier, manager) would
  have been the same; and
- every worker could take an even share: bounds are not known here.

Under these assumptions the estimate is exact where the curves are, whatever the noise. The fit says how well
the curves are known.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.curves import Curves
from evenpace.overview.statistics import Array

_ROUNDING = 1.0  # samples by which a share may differ from the even one and still count as even


def with_even_shares(sizes: Array, times: Array, curves: Curves) -> Array:
    """Return the batch processing times that workers would have had with even shares.

    Args:
        sizes: Batch sizes in samples, (..., workers); NaN where a worker took no part.
        times: Batch processing times in seconds, likewise.
        curves: The workers' time curves, (workers,).

    Returns:
        Seconds, (..., workers): the measured time where a worker's share was even, NaN where it had no
        sample.
    """
    busy = (sizes > 0) & (times > 0)
    return np.where(busy, _with_shares(even_shares(sizes), sizes, times, curves, busy), np.nan)


def even_durations(durations: Array, sizes: Array, times: Array, cases: Sequence[Curves]) -> Array:
    """Return the durations that iterations would have had with even shares, as `durations_with` does."""
    return durations_with([even_shares(sizes)] * len(cases), durations, sizes, times, cases)


def durations_with(
    shares: Sequence[Array], durations: Array, sizes: Array, times: Array, cases: Sequence[Curves]
) -> Array:
    """Return the durations that iterations would have had with other shares.

    A worker without a sample in an iteration is taken to be as fast as when it last had any.

    Args:
        shares: Shares in samples, (iterations, workers) or (iterations, 1), for each of `cases`.
        durations: Measured durations in seconds, (iterations,).
        sizes: Batch sizes in samples, (iterations, workers); NaN where a worker took no part.
        times: Batch processing times in seconds, likewise.
        cases: Time curves that the workers may have, (workers,) each.

    Returns:
        Seconds, (cases, iterations): the measured duration where shares were even, NaN where it is not known.
    """
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
        [
            _with_shares(share, sizes, times, case, busy).max(axis=1, initial=0.0)
            for share, case in zip(shares, cases, strict=True)
        ]
    )
    known = (durations > 0) & (slowest > 0) & (longest > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Where workers are ahead of each other, iterations overlap, and take less than the slowest.
        found = np.where(durations < slowest, durations * longest / slowest, durations + (longest - slowest))
    return np.where(known, found, np.nan)


def _with_shares(shares: Array, sizes: Array, times: Array, curves: Curves, busy: NDArray[np.bool_]) -> Array:
    """Return the times with `shares` instead of `sizes`, (..., workers); 0 where not `busy`, or no share."""
    # A share that hardly differs keeps its measured time exactly, whatever the curve.
    sizes = np.where(busy & (np.abs(sizes - shares) >= _ROUNDING), sizes, shares)
    taken = np.where(busy & (shares > 0), times, 0.0)
    return np.asarray(taken * (curves.fitted(shares) / curves.fitted(sizes)))


def even_shares(sizes: Array) -> Array:
    """Return each iteration's even share in samples, (..., 1); 0 where no worker took part."""
    there = ~np.isnan(sizes)
    workers = np.maximum(there.sum(axis=-1, keepdims=True), 1)
    return np.asarray(np.where(there, sizes, 0.0).sum(axis=-1, keepdims=True) / workers)
