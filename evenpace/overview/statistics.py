"""Order statistics of arrays with gaps: NaN stands for a worker that took no part."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def quantile(values: Array, share: float) -> Array:
    """Return a quantile of each column, leaving out NaN; NaN for a column of NaN alone.

    Args:
        values: (rows, columns).
        share: Share of the values below the quantile, 0 to 1; 0.5 for the median. Between two values it is
            interpolated linearly.

    Returns:
        (columns,).
    """
    rows, columns = values.shape
    if rows == 0:
        return np.full(columns, np.nan)
    ordered = np.sort(values.T, axis=1)  # NaN comes last
    known = rows - np.isnan(values).sum(axis=0)
    place = share * np.maximum(known - 1, 0)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(known - 1, 0))
    every = np.arange(columns)
    below, above = ordered[every, low], ordered[every, high]
    between: Array = below + (place - low) * (above - below)
    return between


def median(values: Array) -> Array:
    """Return the median of each column, leaving out NaN; (rows, columns) to (columns,)."""
    return quantile(values, 0.5)


def others_median(values: Array) -> Array:
    """Return for each value the median of the others in its row; NaN where there are no others.

    Args:
        values: (rows, columns); NaN are left out.

    Returns:
        (rows, columns). A NaN has a median, too: that of all values in its row.
    """
    rows, columns = values.shape
    order = np.argsort(values, axis=1)  # NaN comes last
    ordered = np.take_along_axis(values, order, axis=1)
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(columns)[None, :], axis=1)
    known = columns - np.isnan(values).sum(axis=1, keepdims=True)  # (rows, 1)
    there = places < known
    others = known - there  # number of other values, (rows, columns)
    low, high = (others - 1) // 2, others // 2
    result = np.zeros((rows, columns))
    for middle in (low, high):
        place = np.where(there & (middle >= places), middle + 1, middle)  # step over the value itself
        result += np.take_along_axis(ordered, np.clip(place, 0, columns - 1), axis=1) / 2
    result[others == 0] = np.nan
    return result
