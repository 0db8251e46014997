"""Sums in fixed point, which depend neither on the order of what is added nor on how it is divided.

Additions of integers are exact and may be done in any order; those of floating-point numbers round each time.
So each micro-batch's values, times its samples, are rounded once, in the same way by any worker, and added as
integers of 64 bits. `idl/parameter_server.thrift` defines them for other languages.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from idl.layout import Layout

_BITS = 63  # of an integer, without its sign
_GRADIENT_BITS = 20
_STATISTIC_BITS = 31
_BLOCK = 2**14  # elements that are added at once: they and their products stay in a core's cache
_WEIGHT_STEP = 2.0**-20


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """The fixed-point format of sums, over a batch, of values times samples: integer multiples of `unit`.

    The unit follows from the batch's size: no sum over the batch can overflow where all values are below
    `limit`, and the mean's resolution is the same for any size, to a factor of 2.
    """

    total: int  # samples of the whole batch
    # Whether the values are statistics, such as batch normalisation's, and not gradients.
    statistics: bool = False

    @property
    def limit(self) -> float:
        """Return the absolute value that all values must be below."""
        return 2.0 ** (_STATISTIC_BITS if self.statistics else _GRADIENT_BITS)

    @property
    def unit(self) -> float:
        """Return the value that the integer 1 stands for, a power of 2."""
        return self.limit * 2.0 ** (self.total.bit_length() - _BITS)

    def add(self, sums: NDArray[np.int64], values: NDArray[np.floating], count: float) -> None:
        """Add the mean over `count` samples to sums, (n,) both, each product rounded to the nearest unit.

        The count may be a weight by `exact_weight` instead.

        Raises:
            InvalidRequestError: A value is not below the limit; the sums are no longer usable.
        """
        for begin in range(0, len(values), _BLOCK):
            block = values[begin : begin + _BLOCK]
            self.check(max(abs(float(block.max())), abs(float(block.min()))))
            scaled = np.multiply(block, count / self.unit, dtype=np.float64)
            sums[begin : begin + _BLOCK] += np.rint(scaled, out=scaled).astype(np.int64)

    def mean(self, sums: NDArray[np.int64], weight: float | None = None) -> NDArray[np.float64]:
        """Return the mean over the batch, (n,), from its sums, (n,).

        Args:
            weight: The sum of the weights of what was added, by `exact_weight`; where it is 0, so is the
                mean. None: the batch's samples.
        """
        mean = sums.astype(np.float64)
        mean *= self.unit
        mean /= self.total if weight is None else weight or 1.0
        return mean

    def check(self, largest: float, of: str = "") -> None:
        """Check that values can be added.

        Args:
            largest: The largest absolute value, or NaN if there is one among them.

        Raises:
            InvalidRequestError: The largest is not below the limit; the message names both.
        """
        if not largest < self.limit:
            what = "a running statistic" if self.statistics else "a micro-batch's gradient"
            raise InvalidRequestError(
                f"{what} has an absolute value of {largest:g}{f' in {of}' if of else ''}: exact sums "
                f"(--exact) take numbers below {self.limit:g}"
            )


def add_to(
    sums: NDArray[np.int64],
    values: NDArray[np.floating],
    count: int,
    total: int,
    layout: Layout,
    weight: float | None = None,
) -> None:
    """Add a micro-batch's gradient and statistics to sums over a batch.

    Args:
        sums: (elements,), changed in place.
        values: (elements,), the mean over the micro-batch.
        count: Samples of the micro-batch; with 0, nothing is added, whatever the values are.
        total: Samples of the batch.
        weight: What stands for the samples in groups of parameters, by `exact_weight`; None: the samples.

    Raises:
        InvalidRequestError: A value is not below its limit; the sums are no longer usable.
    """
    for begin, end, form in _groups(layout, total):
        mass = count if weight is None or form.statistics else weight
        if mass:
            form.add(sums[begin:end], values[begin:end], mass)


def mean_of(sums: NDArray[np.int64], total: int, layout: Layout) -> NDArray[np.float64]:
    """Return the mean over a batch of `total` samples, (elements,), of which these are the sums."""
    return np.concatenate([form.mean(sums[begin:end]) for begin, end, form in _groups(layout, total)])


def rounded_weight(weight: float) -> float:
    """Return a weight as a multiple of 2^-20, so that sums of weights up to 2^33 are exact in any order."""
    return round(weight / _WEIGHT_STEP) * _WEIGHT_STEP


def exact_weight(weight: float, limit: int) -> float:
    """Return what stands for samples in exact sums: a rounded weight over a power of 2, that from `limit` on.

    As samples weigh at most `limit` each, it is at most their number, so that no sum overflows.
    """
    return weight / 2.0 ** (limit - 1).bit_length()


def weight_unit(limit: int) -> float:
    """Return the power of 2 that exact weights, and sums of them, are multiples of."""
    return exact_weight(_WEIGHT_STEP, limit)


def _groups(layout: Layout, total: int) -> Iterator[tuple[int, int, FixedPoint]]:
    """Yield the elements of each group, from begin to end, and their form."""
    for begin, end, group in layout.ranges:
        yield begin, end, FixedPoint(total, group.statistics)
