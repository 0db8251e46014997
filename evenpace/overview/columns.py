"""The last iterations' figures of each worker, as one array; a worker has a column for as long as it is seen.

Bounded: by iterations and, with many workers, by values.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from evenpace.overview.statistics import Array
from idl.records import IterationRecord

QUANTITIES = 6
SIZE, TIME, WAIT, CPU, MEMORY, PREDICTED = range(QUANTITIES)

_ROWS = 2000
_FEWEST_ROWS = 100  # what figures of late are made of
_VALUES = 2_000_000
_FIRST_ROWS = 64
_SLACK = 1.25  # rows, and columns, of memory for each that is needed, so that they are rarely moved


class Slots:
    """Which column is whose.

    Attributes:
        count: Columns, some of which may be nobody's yet.
    """

    def __init__(self) -> None:
        self.count = 0
        self._of: dict[str, int] = {}
        self._names: tuple[str, ...] = ()  # of the last look-up
        self._found: NDArray[np.int64] = np.empty(0, np.int64)

    def find(self, names: tuple[str, ...]) -> NDArray[np.int64] | None:
        """The columns of workers, in their order; None where one has none."""
        if names is not self._names and names != self._names:
            if not all(name in self._of for name in names):
                return None
            self._found = np.array([self._of[name] for name in names], dtype=np.int64)
        self._names = names
        return self._found

    def one(self, name: str) -> int | None:
        """The column of a worker, if it has one."""
        return self._of.get(name)

    @property
    def names(self) -> list[str]:
        """The workers', in the order of the columns."""
        return list(self._of)  # which grows as columns do

    def give(self, names: Sequence[str], in_use: Callable[[], NDArray[np.bool_]]) -> NDArray[np.int64] | None:
        """Give workers columns; where there are too few, take away those that nothing is in any more.

        Args:
            names: Of workers that need one.
            in_use: Says which of the columns still hold anything, (count,).

        Returns:
            None if the columns stay as they are; else the old ones that become the first new ones, in order.
        """
        self._names = ()
        wanted = set(names)
        new = [name for name in names if name not in self._of]
        keep = None
        if len(self._of) + len(new) > self.count:
            known = self.names
            held = list(range(len(known)))
            used = in_use()
            if 2 * used.sum() < len(known):
                held = [i for i, name in enumerate(known) if used[i] or name in wanted]
                self._of = {known[old]: i for i, old in enumerate(held)}
            keep = np.array(held, dtype=np.int64)
            self.count = int(_SLACK * (len(held) + len(new))) + 1 if known else len(new)
        for name in new:
            self._of[name] = len(self._of)
        return keep


class Recent:
    """The rows: iterations ascending, each (QUANTITIES, columns), NaN where a worker took no part."""

    def __init__(self) -> None:
        self._values = np.empty((_FIRST_ROWS, QUANTITIES, 0))
        self._numbers = np.empty(_FIRST_ROWS, np.int64)
        self._begin = self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def values(self) -> Array:
        """(rows, QUANTITIES, columns); a view that is good until the next change."""
        return self._values[self._begin : self._end]

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Which iteration each row is, (rows,)."""
        return self._numbers[self._begin : self._end]

    def in_use(self) -> NDArray[np.bool_]:
        """Which columns hold anything, (columns,)."""
        return np.asarray(~np.isnan(self.values[:, SIZE]).all(axis=0))

    def append(self, iteration: IterationRecord, columns: NDArray[np.int64]) -> None:
        """Take an iteration whose workers have these columns."""
        if self._end == len(self._numbers):
            self._make_room()
        row = self._values[self._end]
        row[...] = np.nan
        row[SIZE, columns] = iteration.batch_sizes
        row[TIME, columns] = iteration.batch_processing_times
        row[WAIT, columns] = iteration.waiting_times
        row[CPU, columns] = iteration.cpu_usages
        row[MEMORY, columns] = iteration.memory_usages
        row[PREDICTED, columns] = iteration.predicted_speeds
        self._numbers[self._end] = iteration.iteration
        self._end += 1
        self._begin = max(self._begin, self._end - self.most)

    def cut(self, iteration: int) -> None:
        """Drop the rows of an iteration and of later ones."""
        self._end = self._begin + int(np.searchsorted(self.numbers, iteration))

    def resize(self, keep: NDArray[np.int64], count: int) -> None:
        """Have so many columns, of which the first are the old ones named."""
        values = np.full((len(self._numbers), QUANTITIES, count), np.nan)
        values[self._begin : self._end, :, : len(keep)] = self.values[:, :, keep]
        self._values = values
        self._begin = max(self._begin, self._end - self.most)

    @property
    def most(self) -> int:
        """Rows that are kept."""
        columns = max(1, self._values.shape[2])
        return min(_ROWS, max(_FEWEST_ROWS, _VALUES // (QUANTITIES * columns)))

    def _make_room(self) -> None:
        kept = len(self)
        rows = min(max(_FIRST_ROWS, 2 * kept), int(_SLACK * self.most))
        values = np.empty((rows, *self._values.shape[1:]))
        numbers = np.empty(rows, np.int64)
        values[:kept], numbers[:kept] = self.values, self.numbers
        self._values, self._numbers = values, numbers
        self._begin, self._end = 0, kept
