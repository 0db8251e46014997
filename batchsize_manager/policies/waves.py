"""Time curves of workers that compute several micro-batches at once, in one wave after the other.

n micro-batches on a worker that runs k at once take as long as their full waves and a last one that need
not be full: a staircase. With full waves alone, n = n_vsw (n_GA + 1) as in JABAS (section 5.1), the time can
fall where one more micro-batch fills another wave. With a last wave that is not full it never does, so the
solver's greedy rule is optimal, and JABAS's dynamic programme (Alg. 1) is not needed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise, zip_longest

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.solver import fill_to_level
from predictors import Array


@dataclass(frozen=True)
class Waves:
    """One worker's times for waves of micro-batches.

    Attributes:
        seconds: Seconds of one wave of 1, 2, …, K micro-batches at once, (K,); never less for a larger one.
            t_vsw in JABAS (equation 2).

    Raises:
        ValueError: A time is not above 0, less than that of a smaller wave, or `at_once` is beyond K.
    """

    seconds: tuple[float, ...]
    # Micro-batches that the worker runs at once, k; None: the best up to K, for each number.
    at_once: int | None = None

    def __post_init__(self) -> None:
        if not self.seconds or not all(0 < seconds < math.inf for seconds in self.seconds):
            raise ValueError(f"seconds {self.seconds}: must be numbers above 0, one for each size of a wave")
        if any(more < less for less, more in pairwise(self.seconds)):
            raise ValueError(f"seconds {self.seconds}: a wave must not take less than a smaller one")
        if self.at_once is not None and not 1 <= self.at_once <= len(self.seconds):
            raise ValueError(f"at_once {self.at_once}: must be from 1 to {len(self.seconds)}")

    @cached_property
    def _from_none(self) -> Array:
        """Seconds of a wave of 0 to K micro-batches, (K + 1,)."""
        return np.array([0.0, *self.seconds])

    @cached_property
    def choices(self) -> NDArray[np.int64]:
        """The numbers of micro-batches at once that the worker may choose from, (choices,)."""
        return np.arange(1, len(self.seconds) + 1) if self.at_once is None else np.array([self.at_once])

    def times(self, number: int) -> Array:
        """Return the seconds of `number` micro-batches, at least 1, by the number at once; (choices,)."""
        full, last = np.divmod(number, self.choices)
        times: Array = full * self._from_none[self.choices] + self._from_none[last]
        return times

    def time(self, number: int) -> float:
        """Return the seconds of `number` micro-batches; 0 for none."""
        return float(self.times(number).min()) if number else 0.0

    def best_at_once(self, number: int) -> int:
        """Return how many of `number` micro-batches to run at once: the fewest with the shortest time."""
        return int(self.choices[self.times(number).argmin()])


class WaveCurves:
    """Waves of micro-batches as the `TimeCurves` of `split_evenly_in_time`.

    Counts are in whole micro-batches.

    Args:
        waves: Each worker's times, (workers,).
    """

    def __init__(self, waves: Sequence[Waves]) -> None:
        self.waves = waves
        self._time = cache(Waves.time)  # workers of one kind of device have equal waves
        # Each number at once of each worker is a choice; those of a worker follow each other.
        choices = [its.choices for its in waves]
        numbers = [len(its) for its in choices]
        self._first = np.cumsum([0, *numbers[:-1]])  # (workers,), index of the first choice
        self._worker = np.repeat(np.arange(len(waves)), numbers)  # (choices,)
        self._at_once = np.concatenate(choices)  # (choices,)
        rows = [its.seconds for its in waves]
        seconds = np.array([*zip_longest(*rows, fillvalue=np.inf)]).T[self._worker]  # (choices, most at once)
        self._wave = seconds[np.arange(len(seconds)), self._at_once - 1]
        is_smaller = np.arange(1, seconds.shape[1] + 1) < self._at_once[:, None]
        self._smaller = np.where(is_smaller, seconds, np.inf)  # seconds of last waves

    def time(self, worker: int, count: int) -> float:
        """Return the seconds of one worker; see `TimeCurves.time`."""
        return self._time(self.waves[worker], count)

    def fill(self, total: int, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return counts just below the best split; see `TimeCurves.fill`."""
        return fill_to_level(self.time, self.within, total, low, high)

    def within(self, level: float | Array) -> Array:
        """Return the most micro-batches of each worker within a time in seconds, or its own of (workers,)."""
        room = np.broadcast_to(level, len(self.waves))[self._worker]  # (choices,)
        full = np.floor(room / self._wave)
        last = (self._smaller <= (room - full * self._wave)[:, None]).sum(axis=1)
        numbers: Array = np.maximum.reduceat(full * self._at_once + last, self._first)
        return numbers
