"""A value that all workers share, such as a ratio or the time of a reduction, from noisy measurements."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.measurements import Measurements
from predictors import Array

_LEAST = 1e-9  # values are positive: their noise is relative


class SharedValue:
    """A value above 0 that is the same for all sources, each of which measures it with noise of its own.

    Each source has the average of its last measurements, spikes left out, and the value is the mean of the
    averages, weighted by the inverse of their variances (Cannikin, section 5.3).

    Args:
        sources: The number of sources at first.
    """

    def __init__(self, sources: int = 0) -> None:
        self._measurements = Measurements()
        self.reindex([None] * sources)

    def reindex(self, rows: Sequence[int | None]) -> None:
        """Move the sources' rows: for each from now on, the row that it had, or None for a new one."""
        self._measurements.reindex(rows)

    def add(self, sources: NDArray[np.int64], values: Array) -> None:
        """Add a measurement of some of the sources, (measurements,) each; values below 1e-9 count as that."""
        # All are of one "batch size", which has the first place.
        expected = self._measurements.times[sources, 0]
        self._measurements.add(sources, np.ones(len(sources)), np.maximum(values, _LEAST), expected)

    @property
    def value(self) -> float | None:
        """The value as known so far; None before the first measurement."""
        measured = self._measurements
        seen = measured.repeats[:, 0] > 0
        if not seen.any():
            return None
        averages = measured.times[seen, 0]
        weights = 1 / (measured.variances[seen, 0] * averages**2)
        return float((weights * averages).sum() / weights.sum())
