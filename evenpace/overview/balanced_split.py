"""Estimates of how fast iterations that were split evenly would have been if the split had been balanced.

The assumptions are those of `even_split`: each worker's time follows its time curve, times a factor. The
balanced split is the one that would have ended soonest with each worker's typical factor, as the policies
find it (`batchsize_manager.policies.solver`), but for rounding to samples. Bounds are not known here.
"""

from collections.abc import Sequence

import numpy as np

from batchsize_manager.policies.curves import Curves
from evenpace.overview.even_split import durations_with, even_shares
from evenpace.overview.statistics import Array, median

_LEAST_ITERATIONS = 10  # that must have been split evenly
_ROUNDING = 1.0  # samples by which a share may differ from the even one and still count as even
_HALVINGS = 60  # of the interval in which the balanced time is sought


def balanced_speedups(durations: Array, sizes: Array, times: Array, cases: Sequence[Curves]) -> Array | None:
    """Return how many times as fast the last iterations would have been with a balanced split.

    Of the iterations, those count that have the last one's workers and an even split.

    Args:
        durations: Measured durations in seconds, (iterations,).
        sizes: Batch sizes in samples, (iterations, workers); NaN where a worker took no part.
        times: Batch processing times in seconds, likewise.
        cases: Time curves that the workers may have, (workers,) each.

    Returns:
        (cases,); None where the last iteration's split was not even, or too few such iterations are known.
    """
    if not len(sizes):
        return None
    there = ~np.isnan(sizes[-1])
    apart = np.where(np.isnan(sizes), 0.0, np.abs(sizes - even_shares(sizes))).max(axis=1, initial=0.0)
    even = (apart <= _ROUNDING) & (~np.isnan(sizes) == there).all(axis=1) & (durations > 0)
    even &= ((times > 0) | ~there).all(axis=1)
    if there.sum() < 2 or not even[-1] or even.sum() < _LEAST_ITERATIONS:
        return None
    durations, sizes, times = durations[even], sizes[even][:, there], times[even][:, there]
    cases = [case.at(np.flatnonzero(there)) for case in cases]
    shares = [_balanced_shares(sizes, times, case) for case in cases]
    found = durations_with(shares, durations, sizes, times, cases)
    return np.asarray(durations.sum() / found.sum(axis=1))


def _balanced_shares(sizes: Array, times: Array, curves: Curves) -> Array:
    """Return the shares of each batch that end soonest, in samples; all are (iterations, workers)."""
    factors = median(times / curves.fitted(sizes))
    level, per_unit = factors * curves.level, factors * curves.per_unit
    totals = sizes.sum(axis=1)
    typical = float(np.median(totals))
    # A worker takes at least one sample, and at most the whole batch.
    soonest, latest = (float((factors * curves.fitted(np.array(size))).max()) for size in (1.0, typical))
    for _ in range(_HALVINGS):
        middle = (soonest + latest) / 2
        enough = (curves.threshold + (middle - level) / per_unit).sum() >= typical
        soonest, latest = (soonest, middle) if enough else (middle, latest)
    within = np.maximum(1.0, curves.threshold + (latest - level) / per_unit)
    return np.asarray(totals[:, None] * within / within.sum())
