"""Rows of numbers for some of a job's iterations, in memory that grows with them up to a bound."""

import numpy as np
from numpy.typing import NDArray

from evenpace.overview.statistics import Array

_FIRST_ROWS = 64  # rows of memory at first
_SLACK = 1.25  # rows of memory for each that is kept at most, so that they are rarely moved


class Rows:
    """Rows of numbers, each of one iteration, ascending.

    Args:
        shape: Shape of a row.
        most: Number of rows that are kept at most.
    """

    def __init__(self, shape: tuple[int, ...], most: int) -> None:
        self.most = most
        self._values = np.empty((_FIRST_ROWS, *shape))
        self._numbers = np.empty(_FIRST_ROWS, np.int64)
        self._begin = self._end = 0  # in memory, of the rows that are kept

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def values(self) -> Array:
        """Return the rows, (rows, *shape); a view that is valid until the next change."""
        return self._values[self._begin : self._end]

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Return the iteration of each row, (rows,); a view likewise."""
        return self._numbers[self._begin : self._end]

    def cut(self, iteration: int) -> None:
        """Drop the rows from `iteration` on."""
        self._end = self._begin + int(np.searchsorted(self.numbers, iteration))

    def resize(self, keep: NDArray[np.int64], count: int) -> None:
        """Change the last axis to `count` columns, the first of which are the present `keep`, in order."""
        values = np.full((*self._values.shape[:-1], count), np.nan)
        values[self._begin : self._end, ..., : len(keep)] = self.values[..., keep]
        self._values = values

    def _add(self, iteration: int) -> Array:
        """Add a row above the last, and return it, to be filled; where there are `most`, `_drop` some."""
        if len(self) == self.most:
            self._drop()
        if self._end == len(self._numbers):
            rows = max(_FIRST_ROWS, min(2 * len(self), int(_SLACK * self.most)))
            values, numbers = np.empty((rows, *self._values.shape[1:])), np.empty(rows, np.int64)
            self._move(values, numbers, slice(None))
        self._numbers[self._end] = iteration
        self._end += 1
        row: Array = self._values[self._end - 1]
        return row

    def _drop(self) -> None:
        """Drop the first row."""
        self._begin += 1

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        """Drop the rows but those of a mask, (rows,)."""
        self._move(self._values, self._numbers, kept)

    def _move(self, values: Array, numbers: NDArray[np.int64], kept: NDArray[np.bool_] | slice) -> None:
        """Move rows to the beginning of arrays, which may be those that have them."""
        count = len(self.numbers[kept])
        values[:count], numbers[:count] = self.values[kept], self.numbers[kept]
        self._values, self._numbers = values, numbers
        self._begin, self._end = 0, count
