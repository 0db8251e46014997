"""Each worker's best speed over the whole job, from a bounded number of evenly spaced iterations."""

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.curves import Curves
from evenpace.overview.rows import Rows
from evenpace.overview.statistics import Array, quantile

_ROWS = 256  # iterations kept at most; once full, every other is dropped, and the stride doubles
_BEST_QUANTILE = 0.95  # of a worker's rates; the very fastest may be an accident of timing


class Best(Rows):
    """Batch sizes and batch processing times of the iterations that a stride divides: (2, columns) each.

    The stride is a power of two, which grows with the job, so that memory is bounded.
    """

    def __init__(self) -> None:
        super().__init__((2, 0), _ROWS)
        self._stride = 1

    def append(self, number: int, sizes: Array, times: Array) -> None:
        """Keep an iteration if the stride divides its number.

        Args:
            number: The iteration.
            sizes: Batch sizes in samples, (columns,); NaN where a worker took no part.
            times: Batch processing times in seconds, (columns,); NaN likewise.
        """
        if number % self._stride == 0 and len(self) == self.most:
            self._stride *= 2
            self._keep(self.numbers % self._stride == 0)
        if number % self._stride == 0:
            self._add(number)[...] = sizes, times

    def rates(self, columns: NDArray[np.int64], curves: Curves) -> Array:
        """Return the best rate of each of `columns`, as `rates` defines it; NaN where nothing is known.

        Args:
            columns: Columns of the workers, (workers,).
            curves: Their time curves, (workers,).
        """
        sizes, times = self.values[:, :, columns].transpose(1, 0, 2)
        return quantile(rates(sizes, times, curves), _BEST_QUANTILE)


def rates(sizes: Array, times: Array, curves: Curves) -> Array:
    """Return the speed of each worker in each iteration relative to its time curve, whatever its batch size.

    Args:
        sizes: Batch sizes in samples, (iterations, workers); NaN where a worker took no part.
        times: Batch processing times in seconds, likewise.
        curves: The workers' time curves, (workers,).

    Returns:
        The curve's time over the measured time, (iterations, workers); NaN where there was no sample.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((sizes > 0) & (times > 0), curves.fitted(sizes) / times, np.nan)
