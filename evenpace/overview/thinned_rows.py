"""A job's iterations in all, a row of numbers each: bounded, by leaving some out of those long past.

Sums are carried in each row, so that they stay exact whatever is left out, and whatever is cut off.
"""

from dataclasses import dataclass

import numpy as np

from evenpace.overview.statistics import Array
from idl.records import IterationRecord

MOST = 20_000  # rows
_COMPLETE = 2000  # the last rows, of which none is left out
_FIRST = 64

ITERATION, EPOCH, TOTAL, DURATION = range(4)
EVEN = slice(4, 7)  # durations with an even split: by the flattest, the likely, and the steepest time curves
SIZES, TIMES, WAITS = slice(7, 10), slice(10, 13), slice(13, 16)  # minimum, median, maximum over workers
_SUMS, _SAVED = slice(16, 19), slice(19, 22)
_WIDTH = 22


@dataclass(frozen=True, slots=True)
class Sums:
    """Over all iterations: how many, and their samples, seconds, and seconds saved against an even split.

    Attributes:
        saved: (3,), as the even durations.
    """

    iterations: int
    samples: int
    seconds: float
    saved: Array


class ThinnedRows:
    """The rows, ascending by iteration."""

    def __init__(self) -> None:
        self._rows = np.empty((_FIRST, _WIDTH))
        self._count = 0

    @property
    def rows(self) -> Array:
        """(rows, numbers); a view that is good until the next change."""
        return self._rows[: self._count]

    @property
    def last(self) -> int:
        """The last iteration; -1 without any."""
        return int(self._rows[self._count - 1, ITERATION]) if self._count else -1

    @property
    def sums(self) -> Sums:
        """Over all iterations that were added and not cut off."""
        if not self._count:
            return Sums(0, 0, 0.0, np.zeros(3))
        row = self._rows[self._count - 1]
        count, samples, seconds = row[_SUMS].tolist()
        return Sums(int(count), int(samples), seconds, row[_SAVED].copy())

    def append(self, iteration: IterationRecord) -> None:
        """Add an iteration above the last; what an even split would have brought is for `revise` to say."""
        if self._count == len(self._rows):
            self._make_room()
        row = self._rows[self._count]
        row[: EVEN.start] = (iteration.iteration, iteration.epoch, iteration.total, iteration.duration)
        row[EVEN] = np.nan
        row[SIZES] = _spread(iteration.batch_sizes)
        row[TIMES] = _spread(iteration.batch_processing_times[iteration.batch_sizes > 0])
        row[WAITS] = _spread(iteration.waiting_times)
        row[_SUMS], row[_SAVED] = (1, iteration.total, iteration.duration), 0.0
        if self._count:
            row[_SUMS.start :] += self._rows[self._count - 1, _SUMS.start :]
        self._count += 1

    def revise(self, even_durations: Array) -> None:
        """Say anew what an even split would have brought of the last iterations, (iterations, 3).

        At most so many as are all kept one by one; NaN: not known.
        """
        first = self._count - len(even_durations)
        rows = self.rows[first:]
        rows[:, EVEN] = even_durations
        saved = np.nan_to_num(even_durations - rows[:, DURATION, None]).cumsum(axis=0)
        rows[:, _SAVED] = saved + (self._rows[first - 1, _SAVED] if first else 0.0)

    def cut(self, iteration: int) -> None:
        """Drop an iteration and later ones."""
        self._count = int(np.searchsorted(self.rows[:, ITERATION], iteration))

    def _make_room(self) -> None:
        if self._count < MOST:
            rows = np.empty((min(2 * self._count, MOST), _WIDTH))
            rows[: self._count] = self.rows
            self._rows = rows
            return
        kept = np.concatenate([self._rows[: MOST - _COMPLETE : 2], self._rows[MOST - _COMPLETE :]])
        self._rows[: len(kept)] = kept
        self._count = len(kept)


def _spread(values: np.ndarray) -> tuple[float, float, float]:
    values = values[np.isfinite(values)]
    if not len(values):
        return (np.nan, np.nan, np.nan)
    return (values.min(), np.median(values), values.max())
