"""Workers that slow a job more than they help: stragglers that already have the fewest samples allowed.

LB-BSP says of them: "restart the training process without that worker, and the resultant setup is
actually more efficient" (section 3.3.2). From the curves it follows by how much.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from batchsize_manager.policies.curves import Curves
from batchsize_manager.policies.measurements import Measurements
from batchsize_manager.policies.overlapped_curves import OverlappedCurves
from batchsize_manager.policies.solver import split_evenly_in_time
from idl.bounds import Bounds

_LEAST_ITERATIONS, _LEAST_REPEATS = 10, 5  # measured of a worker in all, and at its batch size
_LEAST_GAIN, _SURE = 0.02, 3.0  # relative; standard deviations by which a gain must lie above 0
_FURTHEST = 1.5  # times the largest batch measured: as far as the others' curves are trusted
_MOST_CANDIDATES = 8


def dispensable_workers(
    names: Sequence[str],
    curves: Curves | OverlappedCurves,
    measurements: Measurements,
    counts: Sequence[int],
    total: int,
    bounds: Sequence[Bounds],
    unit: int,
) -> Mapping[str, str]:
    """Return the workers without which an iteration would be clearly shorter, with the gain in words.

    Args:
        names: The workers' names, (workers,).
        curves: The workers' time curves, fitted near `counts`.
        measurements: The measurements that the curves were fitted to.
        counts: The present split in units, (workers,).
        total: The sum of `counts`.
        bounds: The workers' bounds, (workers,).
        unit: Samples of a unit.

    Returns:
        By worker, a sentence that says why; empty where no worker slows the job for certain.
    """
    times = curves.times(np.array(counts, dtype=float))
    longest = float(times.max())
    slowest_first = sorted(range(len(counts)), key=lambda i: -times[i])
    candidates: list[int] = []
    best, gone = longest, 0
    for i in slowest_first[: min(_MOST_CANDIDATES, len(counts) - 1)]:
        if counts[i] > _least(bounds[i]) or not _is_known(measurements, i, counts[i], 0.5 / unit):
            break
        candidates.append(i)
        without = _longest_without(candidates, curves, total, bounds)
        if without < best:
            best, gone = without, len(candidates)
    gain = longest / best - 1
    rest = [i for i in range(len(counts)) if i not in candidates[:gone]]
    if not gone or gain < _LEAST_GAIN + _SURE * np.hypot(
        curves.error[slowest_first[0]], curves.error[rest].max()
    ):
        return {}
    them = "it" if gone == 1 else ", ".join(names[i] for i in candidates[:gone])
    why = (
        f"without {them}, an iteration would take {best:.3g} s instead of {longest:.3g} s, {gain:.0%} faster"
    )
    return {
        names[
            i
        ]: f"{names[i]} takes {times[i]:.3g} s for {counts[i] * unit} samples, the fewest it can have: {why}"
        for i in candidates[:gone]
    }


def _least(bound: Bounds) -> int:
    return -(-bound.minimum // bound.granularity) * bound.granularity


def _is_known(measurements: Measurements, worker: int, count: int, near: float) -> bool:
    """Return whether a worker was measured for long, lately at batch sizes nearer than `near` to `count`."""
    there = np.abs(measurements.sizes[worker] - count) < near
    return bool(
        measurements.iterations[worker] >= _LEAST_ITERATIONS
        and np.isnan(measurements.surprise[worker])
        and measurements.repeats[worker][there].max(initial=0.0) >= _LEAST_REPEATS
    )


def _longest_without(
    gone: Sequence[int], curves: Curves | OverlappedCurves, total: int, bounds: Sequence[Bounds]
) -> float:
    """Return the longest time in seconds of the best split over the others; infinity if there is none."""
    left = [bound for i, bound in enumerate(bounds) if i not in gone]
    if sum(bound.maximum for bound in left) < total:
        return float("inf")
    others = curves.without(gone)
    counts = np.array(split_evenly_in_time(others.equal_time(), total, left), dtype=float)
    if (counts > _FURTHEST * others.reach).any():
        return float("inf")
    return float(others.times(counts).max())
