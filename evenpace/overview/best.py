"""How fast each worker is at its best, over all that was seen of it, from evenly spaced iterations."""

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.curves import Curves
from evenpace.overview.statistics import Array, quantile

_ROWS = 256  # at most; then every other goes, and only every other is taken from there on
_SHARE = 0.95  # of its iterations are slower: the very fastest may be an accident of timing


class Best:
    """Batch sizes and batch processing times of every so many iterations."""

    def __init__(self) -> None:
        self._values = np.empty((0, 2, 0))
        self._numbers: list[int] = []
        self._stride = 1

    def append(self, number: int, sizes: Array, times: Array) -> None:
        """Take an iteration, or leave it out. Both arrays are (columns,), with NaN where there is nothing."""
        if number % self._stride:
            return
        self._values = self._values if len(self._values) else np.full((_ROWS, 2, len(sizes)), np.nan)
        if len(self._numbers) == _ROWS:
            self._stride *= 2
            kept = [i for i, taken in enumerate(self._numbers) if taken % self._stride == 0]
            self._values[: len(kept)] = self._values[kept]
            self._numbers = [self._numbers[i] for i in kept]
            if number % self._stride:
                return
        self._values[len(self._numbers)] = sizes, times
        self._numbers.append(number)

    def cut(self, number: int) -> None:
        """Drop an iteration and later ones."""
        while self._numbers and self._numbers[-1] >= number:
            self._numbers.pop()

    def resize(self, keep: NDArray[np.int64], count: int) -> None:
        """Have so many columns, of which the first are the old ones named."""
        values = np.full((_ROWS, 2, count), np.nan)
        values[: len(self._values), :, : len(keep)] = self._values[:, :, keep]
        self._values = values

    def rates(self, columns: NDArray[np.int64], curves: Curves) -> Array:
        """Each one's best rate, whatever its batch sizes were; NaN: nothing is known.

        Args:
            columns: Whose.
            curves: Theirs.
        """
        sizes, times = self._values[: len(self._numbers), :, columns].transpose(1, 0, 2)
        return quantile(rates(sizes, times, curves), _SHARE)


def rates(sizes: Array, times: Array, curves: Curves) -> Array:
    """How fast each worker was in each iteration relative to its curve, (rows, columns); NaN: no sample."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((sizes > 0) & (times > 0), curves.fitted(sizes) / times, np.nan)
