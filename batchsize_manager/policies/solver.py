"""Whole batch sizes from speeds or time curves: the split whose slowest worker finishes soonest.

Counts and bounds are in units, samples or micro-batches; see `Policy`.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from idl.bounds import Bounds
from idl.cuts import Cuts


class InfeasibleError(ValueError):
    """The batch is larger than all workers' maxima together.

    Args:
        total: Units of the batch.
        capacity: Units that the workers can take together.
        cuts: The batch's cuts into micro-batches, where these are the units; None: they are samples.
    """

    def __init__(self, total: int, capacity: int, workers: int, cuts: Cuts | None = None) -> None:
        batch, units = f"{total} samples", ""
        if cuts is not None:
            batch, units = f"{cuts.total} samples, {total} micro-batches of {cuts.size},", " micro-batches"
        over = "1 worker" if workers == 1 else f"{workers} workers"
        super().__init__(f"a batch of {batch} over {over} that can take at most {capacity}{units} together")
        self.total, self.capacity, self.workers = total, capacity, workers


class TimeCurves(Protocol):
    """The seconds that each worker takes for a batch size: never less for a larger one."""

    def time(self, worker: int, count: int) -> float:
        """Return the seconds of one worker, by its row, for `count` units; at least 1."""

    def fill(self, total: int, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return counts just below the best split within the bounds, of `total` units or a few less.

        Each unit that a worker has in them beyond `low` it has in a best split, too.
        """


def split(speeds: Sequence[float], total: int, bounds: Sequence[Bounds]) -> list[int]:
    """Split a batch in proportion to speeds, minimising max(count / speed); see `split_evenly_in_time`.

    Args:
        speeds: The workers' speeds relative to each other, above 0, (workers,).
        total: Units to split.
        bounds: The workers' bounds, (workers,).

    Returns:
        (workers,) counts that sum to `total`.

    Raises:
        InfeasibleError: The maxima together are below `total`.
    """
    return split_evenly_in_time(_Proportional(np.asarray(speeds, dtype=np.float64)), total, bounds)


def split_evenly_in_time(curves: TimeCurves, total: int, bounds: Sequence[Bounds]) -> list[int]:
    """Split a batch so that the longest of the workers' times is the shortest possible.

    The shares that take equally long are rounded down, and each unit that is left goes to the worker
    that would finish it soonest (as the errata to Alg. 1 of LB-BSP ask: rounding to nearest loses the
    sum). Going by steps of one granularity, this greedy rule is optimal, because a worker's time only
    grows with its count. Where the batch is smaller than the minima together, as an epoch's last may be,
    minima do not hold; where it is smaller than the multiples that reach the minima, granularities do
    not. The remainder after whole granularities goes to one worker, if one has room.

    Args:
        total: Units to split.
        bounds: The workers' bounds, (workers,).

    Returns:
        (workers,) counts that sum to `total`.

    Raises:
        InfeasibleError: The maxima together are below `total`.
    """
    capacity = sum(bound.maximum for bound in bounds)
    if total > capacity:
        raise InfeasibleError(total, capacity, len(bounds))
    step = np.array([bound.granularity for bound in bounds], dtype=np.int64)
    minimum = np.array([bound.minimum for bound in bounds], dtype=np.int64)
    maximum = np.array([bound.maximum for bound in bounds], dtype=np.int64)
    # Bounds that are no multiples of the granularity are narrowed to multiples.
    low, high = -(-minimum // step) * step, maximum // step * step
    if minimum.sum() > total:
        low = np.zeros_like(low)
    elif low.sum() > total:
        # Every minimum holds, but not as a multiple: go by single units.
        step, low, high = np.ones_like(step), minimum, maximum

    counts: list[int] = np.clip(curves.fill(total, low, high) // step * step, low, high).tolist()
    left = total - sum(counts)
    steps, most = step.tolist(), high.tolist()

    # (time with one step more, worker) of each worker that can take a step more
    heap = [
        (curves.time(i, counts[i] + steps[i]), i)
        for i in range(len(counts) if left else 0)
        if counts[i] + steps[i] <= most[i]
    ]
    heapq.heapify(heap)
    while heap and left:
        _, i = heapq.heappop(heap)
        if steps[i] > left:
            continue
        counts[i] += steps[i]
        left -= steps[i]
        if counts[i] + steps[i] <= most[i]:
            heapq.heappush(heap, (curves.time(i, counts[i] + steps[i]), i))
    return _place_remainder(counts, left, curves, bounds) if left else counts


def fill_to_level(
    time: Callable[[int, int], float],
    within: Callable[[float], NDArray[np.float64]],
    total: int,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Find by bisection the time in which the workers get through `total` units; see `TimeCurves.fill`.

    Args:
        time: `TimeCurves.time`.
        within: Function from a time in seconds to the most units of each worker in it, (workers,).
        total: Units.
        low: Lower bounds in units, (workers,); they sum to at most `total`.
        high: Upper bounds in units, (workers,).
    """
    # No worker needs more than the whole batch, and in the longest time for that all get through it.
    high = np.maximum(low, np.minimum(high, total))
    longest = max(time(worker, count) for worker, count in enumerate(high.tolist()))
    counts, soonest = low, 0.0
    while longest - soonest > 1e-12 * longest:
        level = (soonest + longest) / 2
        more = np.clip(within(level), low, high).astype(np.int64)
        left = total - int(more.sum())
        if left < 0:
            longest = level
            continue
        counts, soonest = more, level
        if left < len(counts):
            break
    return counts


class _Proportional:
    """Times in proportion to the counts."""

    def __init__(self, speed: NDArray[np.float64]) -> None:
        self._speed = speed  # (workers,)
        self._speeds: list[float] = speed.tolist()

    def time(self, worker: int, count: int) -> float:
        return count / self._speeds[worker]

    def fill(self, total: int, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
        return _fill(self._speed, total, low, high)


def _fill(
    speed: NDArray[np.float64], total: int, low: NDArray[np.int64], high: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the real-valued optimum, clip(speed * T, low, high) with the sum `total`, rounded down.

    T is found by pinning the shares beyond a bound, the more violated side first, until none is.
    """
    share = np.zeros(len(speed))
    free = np.ones(len(speed), dtype=bool)
    left = float(total)
    while free.any():
        share[free] = speed[free] * (left / speed[free].sum())
        below = free & (share < low)
        above = free & (share > high)
        excess = (share - high)[above].sum() - (low - share)[below].sum()
        pinned = above if excess > 0 else below if below.any() else above
        if not pinned.any():
            break
        share[pinned] = (high if excess > 0 else low if below.any() else high)[pinned]
        left = max(0.0, left - share[pinned].sum())
        free &= ~pinned
    # A little is added so that a share which is whole but for rounding error stays whole.
    floors = np.floor(share + 1e-9).astype(np.int64)
    return floors if floors.sum() <= total else np.floor(share).astype(np.int64)


def _place_remainder(counts: list[int], left: int, curves: TimeCurves, bounds: Sequence[Bounds]) -> list[int]:
    """Give away units that no whole granularity fits, breaking as few workers' granularity as possible."""
    result = list(counts)
    order = sorted(range(len(result)), key=lambda i: (curves.time(i, result[i] + left), i))
    fitting = [i for i in order if result[i] + left <= bounds[i].maximum]
    for i in fitting[:1] or sorted(order, key=lambda i: result[i] - bounds[i].maximum):
        part = min(left, bounds[i].maximum - result[i])
        result[i] += part
        left -= part
    return result
