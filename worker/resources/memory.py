"""How large a batch fits into a worker's memory: learned from what batches have taken, and from failures.

It knows figures and batch sizes, and no framework: an adapter reads its device, and catches its errors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # it needs no services to run
    from worker.session import Session

_USABLE = 0.95  # of the memory that is free to us; as the guard of LB-BSP, Alg. 2, line 5
_SIZES = 4  # that must have been measured
_SPREAD = 1.2  # of the largest of them to the smallest
_DEVIATION = 0.02  # from the line, at most, of the span of the peaks
_REACH = 4  # the largest size measured says nothing of batches that are so many times larger
_CHANGE = 0.05  # below the limit told last, for another to be worth telling


@dataclass(frozen=True)
class DeviceMemory:
    """What is in use of a device's memory, in bytes.

    Attributes:
        total: Of the device.
        others: That this process cannot have: what other processes hold, and what the driver keeps for it.
        peak: The most that this process's tensors have taken since it was asked last.
        limit: That this process may take.
    """

    total: int
    others: int
    peak: int
    limit: int

    @property
    def room(self) -> int:
        """How much this process's tensors may take in all."""
        return max(0, min(self.total - self.others, self.limit))

    @property
    def share(self) -> float:
        """The occupied share, 0 to 1: of the device by anybody or, if larger, of our room by ourselves."""
        occupied = (self.others + self.peak) / self.total
        return min(1.0, max(occupied, self.peak / self.room if self.room else 1.0))


def largest_batch(peaks: Mapping[int, int], room: int) -> int | None:
    """The largest batch that fits, where that follows clearly from what others have taken.

    Activations grow with the batch and all else stays, so the peak is nearly a line. It is laid above all
    that was measured, and 0.95 of the room is taken to be usable.

    Args:
        peaks: The most bytes that a batch of each size has taken, by samples.
        room: Bytes that there are.

    Returns:
        Samples, from 0 to 4 times the largest size measured; None where the sizes are too few, too much
        alike, or not on a line, and where the limit is further away.
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
    """The limit to go on with, when `fitted` samples have fitted and `failed` have not: half-way.

    So each failure halves what is not known. Balancers move samples by small steps, so that mostly little
    is not known to begin with.
    """
    return fitted + (failed - fitted) // 2


class MemoryWatch:
    """Reports the device's memory after each iteration, and tells the manager how large a batch fits.

    A limit holds for good, so it is worked out for the most room that there has been: others may give back
    what they hold. Where they do not, a failure to allocate teaches the worker.

    Args:
        session: Whose iterations are watched; this is to be its `memory_usage`.
        read: Gives the device's figures, with the peak since it was called last.

    Attributes:
        samples: That were processed at once in this iteration, if not the whole slice.
    """

    def __init__(self, session: "Session", read: Callable[[], DeviceMemory]) -> None:
        self.samples: int | None = None
        self._session = session
        self._read = read
        self._peaks: dict[int, int] = {}  # by samples, the latest measured last
        self._room = 0  # the most that there has been
        self._told = session.config.bounds.maximum

    def __call__(self) -> float:
        """The occupied share of the memory in the iteration that ends, 0 to 1."""
        memory = self._read()
        self._room = max(self._room, memory.room)
        assignment = self._session.assignment
        samples, self.samples = self.samples, None
        if samples is None and assignment is not None:
            samples = assignment.count
        if samples:
            self._learn(samples, memory.peak)
        return memory.share

    def _learn(self, samples: int, peak: int) -> None:
        self._peaks[samples] = max(peak, self._peaks.pop(samples, 0))
        spec = self._session.spec
        largest = largest_batch(self._peaks, self._room)
        if largest is None or spec is None:
            return
        assignment = self._session.assignment
        whole = max(spec.total_batch_size, assignment.total if assignment is not None else 0)
        if largest >= whole:
            return
        # What has fitted, fits: the line is above it.
        largest = max(largest, *self._peaks)
        if largest < (1 - _CHANGE) * self._told:
            self._session.lower_maximum(largest)
            self._told = largest
