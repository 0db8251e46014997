"""The largest batch that fits into a device's memory, learned from batches' peaks and from failures.

This module knows figures and batch sizes, and no framework: an adapter reads its device, and catches errors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # it needs no services to run
    from worker.session import Session

_USABLE = 0.95  # share of this process's memory that a batch may fill; the guard of LB-BSP, Alg. 2, line 5
_SIZES = 4  # batch sizes that must have been measured
_SPREAD = 1.2  # least ratio of the largest of them to the smallest
_DEVIATION = 0.02  # greatest deviation from the line, as a share of the span of the peaks
_REACH = 4  # greatest ratio of a predicted limit to the largest size measured
_CHANGE = 0.05  # share by which a limit must be below the last reported one to be reported


@dataclass(frozen=True)
class DeviceMemory:
    """The use of a device's memory, in bytes."""

    total: int  # the device's memory
    others: int  # memory that this process cannot have: of other processes, and of the driver for this one
    peak: int  # the most that this process's tensors have taken since the last reading
    limit: int  # the most that this process is allowed to take
    # Number of times so far that memory kept for reuse had to be given back for an allocation.
    shortages: int = 0

    @property
    def room(self) -> int:
        """Return the bytes that this process's tensors may take in all."""
        return max(0, min(self.total - self.others, self.limit))

    @property
    def share(self) -> float:
        """Return the occupied share, 0 to 1: of the device or, if larger, of this process's `room`."""
        occupied = (self.others + self.peak) / self.total
        return min(1.0, max(occupied, self.peak / self.room if self.room else 1.0))


def largest_batch(peaks: Mapping[int, int], room: int) -> int | None:
    """Predict the largest batch that fits from the peaks of other batches.

    Activations grow with the batch and all else stays, so the peak is nearly linear in the samples. A line is
    laid above all measured peaks, and 0.95 of the room counts as usable.

    Args:
        peaks: The most bytes that a batch of each size has taken, by samples.
        room: Bytes that this process's tensors may take.

    Returns:
        Samples, from 0 to 4 times the largest size measured; None where the sizes are too few, too similar,
        or not on a line, or the limit is larger.
    """
    sizes = np.array(sorted(peaks), dtype=np.float64)  # (sizes,)
    if len(sizes) < _SIZES or sizes[-1] < _SPREAD * sizes[0]:
        return None
    taken = np.array([peaks[size] for size in sorted(peaks)], dtype=np.float64)  # (sizes,) bytes
    slope, base = np.polyfit(sizes, taken, 1)
    above = taken - (base + slope * sizes)
    if slope <= 0 or np.abs(above).max() > _DEVIATION * np.ptp(taken):
        return None
    largest = max(0.0, (_USABLE * room - base - above.max()) / slope)
    return int(largest) if largest <= _REACH * sizes[-1] else None


def limit_between(fitted: int, failed: int) -> int:
    """Return the limit half-way between `fitted` samples, which fitted, and `failed`, which did not.

    So each failure halves the range in question. Balancers move samples by small steps, so that the range is
    mostly small to begin with.
    """
    return fitted + (failed - fitted) // 2


class MemoryWatch:
    """Measures the device's memory after each iteration, and reports the largest batch that fits.

    In a job with micro-batches, a batch of any size fits if they do, and what is reported is how many fit at
    once. Each stream keeps memory for itself: too many do not fail, but have the allocator give memory back
    and take it again all the time.

    A limit holds for good, so it is predicted for the most room that there has been: other processes may
    release their memory. Where they do not, a failed allocation lowers the limit.

    Args:
        session: The session whose iterations are watched; this object is to be its meter's `memory_usage`.
        read: Returns the device's figures, with the peak since the last call.
    """

    def __init__(self, session: "Session", read: Callable[[], DeviceMemory]) -> None:
        # Samples that were processed at once in this iteration, if not the whole slice.
        self.samples: int | None = None
        self._session = session
        self._read = read
        self._peaks: dict[int, int] = {}  # by samples, the latest measured last
        self._room = 0  # the most that there has been
        self._reported_maximum = session.config.bounds.maximum
        self._shortages: int | None = (
            None  # until the last iteration's end; those before the first do not count
        )
        self._most_at_once = session.config.bounds.at_once  # when it was looked at last
        self._fitted = 1  # the most micro-batches at once without a shortage

    def __call__(self) -> float:
        """Return the occupied share of the memory in the iteration that ends, 0 to 1."""
        memory = self._read()
        if self._session.training.micro_batch is not None:
            self._learn_at_once(memory.shortages)
            return memory.share
        self._room = max(self._room, memory.room)
        assignment = self._session.assignment
        samples, self.samples = self.samples, None
        if samples is None and assignment is not None:
            samples = assignment.count
        if samples:
            self._learn(samples, memory.peak)
        return memory.share

    def _learn_at_once(self, shortages: int) -> None:
        limits = self._session.limits
        at_once, most = limits.at_once, limits.most_at_once
        lowered, self._most_at_once = most < self._most_at_once, most
        before, self._shortages = self._shortages, shortages
        if lowered:
            return  # the allocation that failed is among the shortages
        if before is None or shortages == before:
            self._fitted = max(self._fitted, at_once)
        elif at_once > 1:
            limits.lower_at_once(limit_between(min(self._fitted, at_once - 1), at_once))
            self._most_at_once = limits.most_at_once

    def _learn(self, samples: int, peak: int) -> None:
        self._peaks[samples] = max(peak, self._peaks.pop(samples, 0))
        spec = self._session.training.spec
        largest = largest_batch(self._peaks, self._room)
        if largest is None or spec is None:
            return
        assignment = self._session.assignment
        whole = max(spec.total_batch_size, assignment.total if assignment is not None else 0)
        if largest >= whole:
            return
        # Sizes that have fitted still fit, although the line lies above them.
        largest = max(largest, *self._peaks)
        if largest < (1 - _CHANGE) * self._reported_maximum:
            self._session.limits.lower_maximum(largest)
            self._reported_maximum = largest
