"""Time curves of all workers, fitted to what was measured of them so far."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.curves import Curves, fit
from batchsize_manager.policies.measurements import Measurements
from predictors import Array


class FittedCurves:
    """Measurements of one kind of time of each worker, and the curves that follow from them."""

    def __init__(self) -> None:
        self.measurements = Measurements()  # the measurements, a row for each worker
        self.least = 1.0  # units; the smallest batch size near which curves are fitted
        self._curves: Curves | None = None  # None: to be fitted again, as there are new measurements
        self._centres = np.zeros(0)  # (workers,), units: where the curves are to be right

    def reindex(self, rows: Sequence[int | None]) -> None:
        """Move the rows: for each worker from now on, the row that it had, or None for a new one."""
        self.measurements.reindex(rows)
        self._curves = None

    def restore(self, worker: int, sizes: Array, times: Array) -> None:
        """Fill a worker's row from an earlier run; see `Measurements.restore`."""
        self.measurements.restore(worker, sizes, times)
        self._curves = None

    def add(self, workers: NDArray[np.int64], sizes: Array, times: Array) -> None:
        """Add an iteration of some of the workers.

        Args:
            workers: Their rows, (reports,).
            sizes: Batch sizes in units, above 0, (reports,).
            times: Seconds, above 0, (reports,).
        """
        everyone = self.measurements.latest_sizes
        everyone[workers] = sizes
        expected = self.near(everyone).times(everyone)[workers]
        self.measurements.add(workers, sizes, times, expected)
        self._curves = None

    def near(self, centres: Array) -> Curves:
        """Return the curves fitted near `centres`, (workers,); the average where nothing was measured."""
        if self._curves is not None and np.array_equal(centres, self._centres):
            return self._curves
        measured = self.measurements
        curves = fit(measured.sizes, measured.times, measured.variances, np.maximum(centres, self.least))
        self._curves, self._centres = curves.averaged_over(measured.known), centres
        return self._curves
