"""Measurements of the last iterations as one array, in which each worker seen in them has a column.

The array is bounded in iterations and, with many workers, in values.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from evenpace.overview.rows import Rows
from idl.records import COLUMNS, IterationRecord

QUANTITIES = len(COLUMNS)
NAMES = [column.name for column in COLUMNS]
SIZE, TIME, WAIT = map(NAMES.index, ("batch_size", "batch_processing_time", "waiting_time"))
CPU, PREDICTED, AT_ONCE = map(NAMES.index, ("cpu_usage", "predicted_speed", "at_once"))
COMMUNICATION = NAMES.index("communication_time")
SHOWN = {column.name: column.measured.shown for column in COLUMNS if column.measured.shown is not None}
"""The columns of workers' tables that show a measured value as it is, by the value's name."""

_ROWS = 2000  # iterations kept at most
_FEWEST_ROWS = 100  # iterations kept whatever the number of workers: what `RecentFigures` computes from
_VALUES = 2_000_000  # numbers kept at most, by which many workers have fewer iterations
_SLACK = 1.25  # columns of memory for each that is needed, so that they are rarely moved


class Slots:
    """Assignment of columns to workers."""

    def __init__(self) -> None:
        self.count = 0  # number of columns, some of which may have no worker yet
        self._of: dict[str, int] = {}
        self._names: tuple[str, ...] = ()  # of the last look-up, and below what it found
        self._found: NDArray[np.int64] = np.empty(0, np.int64)

    def find(self, names: tuple[str, ...]) -> NDArray[np.int64] | None:
        """Return the columns of workers, in their order; None if one of them has no column."""
        if names is not self._names and names != self._names:
            if not all(name in self._of for name in names):
                return None
            self._found = np.array([self._of[name] for name in names], dtype=np.int64)
        self._names = names
        return self._found

    def column(self, name: str) -> int | None:
        """Return a worker's column; None if it has none."""
        return self._of.get(name)

    @property
    def names(self) -> list[str]:
        """Return the workers' names, in the order of their columns."""
        return list(self._of)  # which grows as columns do

    def assign(
        self, names: Sequence[str], in_use: Callable[[], NDArray[np.bool_]]
    ) -> NDArray[np.int64] | None:
        """Assign columns to workers; where there are too few, free the columns that hold nothing any more.

        Args:
            names: Workers that need a column.
            in_use: Returns which of the columns still hold anything, (count,).

        Returns:
            None if the columns stay as they are; else the old columns that become the first of the new
            ones, in order.
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


class Recent(Rows):
    """Rows of the last iterations: (QUANTITIES, columns) each, NaN where a worker took no part."""

    def __init__(self) -> None:
        super().__init__((QUANTITIES, 0), _ROWS)

    def in_use(self) -> NDArray[np.bool_]:
        """Return which columns hold anything, (columns,)."""
        return np.asarray(~np.isnan(self.values[:, SIZE]).all(axis=0))

    def append(self, iteration: IterationRecord, columns: NDArray[np.int64]) -> None:
        """Add an iteration; `columns` are those of its workers, in their order."""
        row = self._add(iteration.iteration)
        row[...] = np.nan
        row[:, columns] = [iteration.column(name) for name in NAMES]

    def resize(self, keep: NDArray[np.int64], count: int) -> None:
        """Change the columns, and with them the number of rows; see `Rows.resize`."""
        super().resize(keep, count)
        self.most = min(_ROWS, max(_FEWEST_ROWS, _VALUES // (QUANTITIES * max(1, count))))
        self._begin = max(self._begin, self._end - self.most)
