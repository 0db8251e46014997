"""Workers that slow a job more than they help: those that set its pace with the fewest samples they can have.

LB-BSP says of them: "restart the training process without that worker, and the resultant setup is
actually more efficient" (section 3.3.2). From the curves it follows by how much.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from batchsize_manager.policies.curves import Curves, EqualTime
from batchsize_manager.policies.sightings import Sightings
from batchsize_manager.policies.solver import split_evenly_in_time
from idl.bounds import Bounds

_LEAST_ITERATIONS, _LEAST_REPEATS = 10, 5  # that a worker must have been seen for, and at that batch size
_LEAST_GAIN, _SURE = 0.02, 3.0  # relative; standard deviations by which a gain must lie above 0
_FURTHEST = 1.5  # times the largest batch that was seen: as far as the others' curves are believed
_MOST_CANDIDATES = 8


def dispensable(
    names: Sequence[str],
    curves: Curves,
    sightings: Sightings,
    counts: Sequence[int],
    total: int,
    bounds: Sequence[Bounds],
) -> Mapping[str, str]:
    """Those without whom an iteration of the same batch would be clearly shorter, with the gain in words.

    Args:
        names: (workers,).
        curves: Of the workers, right near `counts`.
        sightings: What they were fitted to.
        counts: (workers,), the present split.
        total: Samples that it sums to.
        bounds: (workers,).
    """
    times = curves.times(np.array(counts, dtype=float))
    longest = float(times.max())
    slowest_first = sorted(range(len(counts)), key=lambda i: -times[i])
    candidates: list[int] = []
    best, gone = longest, 0
    for i in slowest_first[: min(_MOST_CANDIDATES, len(counts) - 1)]:
        if counts[i] > _least(bounds[i]) or not _is_known(sightings, i, counts[i]):
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
    who = "it" if gone == 1 else f"{', '.join(names[i] for i in candidates[:gone])}"
    return {
        names[
            i
        ]: f"{names[i]} takes {times[i]:.3g} s for {counts[i]} samples, the fewest it can have: without "
        f"{who}, an iteration would take {best:.3g} s instead of {longest:.3g} s, {gain:.0%} faster"
        for i in candidates[:gone]
    }


def _least(bound: Bounds) -> int:
    return -(-bound.minimum // bound.granularity) * bound.granularity


def _is_known(sightings: Sightings, worker: int, count: int) -> bool:
    there = np.abs(sightings.sizes[worker] - count) < 0.5
    return bool(
        sightings.iterations[worker] >= _LEAST_ITERATIONS
        and np.isnan(sightings.surprise[worker])
        and sightings.repeats[worker][there].max(initial=0.0) >= _LEAST_REPEATS
    )


def _longest_without(gone: Sequence[int], curves: Curves, total: int, bounds: Sequence[Bounds]) -> float:
    """The longest time of the best split over the others; infinity where they cannot take it, or may not."""
    left = [bound for i, bound in enumerate(bounds) if i not in gone]
    if sum(bound.maximum for bound in left) < total:
        return float("inf")
    others = curves.without(gone)
    counts = np.array(split_evenly_in_time(EqualTime(others), total, left), dtype=float)
    if (counts > _FURTHEST * others.reach).any():
        return float("inf")
    return float(others.times(counts).max())
