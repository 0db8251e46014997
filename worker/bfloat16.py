"""Rounding to bfloat16, the first 16 bits of a float32: on the wire a gradient is half as long."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 1 << 15  # elements, which stay in the cache with what is computed of them
_QUIET = 0x0040  # a bit of the fraction, lest a NaN be rounded to an infinity


def round_to_bfloat16(values: NDArray[Any], into: NDArray[np.uint16]) -> None:
    """Round values to the nearest of bfloat16, ties to the even one; NaNs stay NaNs.

    Args:
        values: (elements,), of float32 or float64.
        into: (elements,): the bits of the rounded values.
    """
    for begin in range(0, len(values), _AT_ONCE):
        piece = values[begin : begin + _AT_ONCE].astype(np.float32, copy=False)
        bits = piece.view(np.uint32)
        rounded = bits >> 16
        tie = rounded & 1
        tie += 0x7FFF
        tie += bits
        tie >>= 16
        if (nans := np.isnan(piece)).any():
            tie[nans] = rounded[nans] | _QUIET
        into[begin : begin + len(piece)] = tie
