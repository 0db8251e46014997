"""Samples on their way from worker to worker: arrays of numbers with dtype and shape, never pickled objects.

This module knows the form of the samples of this worker's own data set, and accepts no other form. A tensor
is an object that NumPy can convert to an array; the adapter converts it back.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import idl
from idl import check
from idl.errors import InvalidRequestError

_wire = idl.data_partition

_REAL = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
DTYPES = frozenset([*_REAL.split(), "complex64", "complex128"])
_MAX_ARRAYS = 1000
_MAX_DIMENSIONS = 32


class SampleForm:
    """The form of a data set's samples: numbers, arrays, or tuples, lists and dictionaries of these.

    Args:
        example: Any of the samples.
        revive: Converts an array to the type that it has in the example: called with the array or tensor
            there, and an array of the same dtype.

    Raises:
        InvalidRequestError: The example holds an object of another type.
    """

    def __init__(self, example: Any, revive: Callable[[Any, NDArray[Any]], Any]) -> None:
        self._example = example
        self._revive = revive
        arrays = _arrays(example)
        self._dtypes = [array.dtype.name for array in arrays]
        self._dimensions = [array.ndim for array in arrays]
        self.size = sum(array.nbytes for array in arrays)  # bytes of the example's arrays

    def pack(self, index: int, sample: Any) -> Any:
        """Make a `Sample` of data_partition.thrift (InvalidRequestError: the sample is not of this form)."""
        arrays = _arrays(sample)
        self._check(index, [array.dtype.name for array in arrays], [array.ndim for array in arrays])
        packed = [
            _wire.Array(array.dtype.name, list(array.shape), array.astype(_little(array.dtype)).tobytes())
            for array in arrays
        ]
        return _wire.Sample(index, packed)

    def unpack(self, wire: Any) -> tuple[int, Any, int]:
        """Read a `Sample` of data_partition.thrift, and return index, sample and size in bytes.

        Raises:
            InvalidRequestError: The sample is not of this form, or its fields contradict each other.
        """
        index = check.integer("index", wire.index, 0)
        if type(wire.arrays) is not list or not 1 <= len(wire.arrays) <= _MAX_ARRAYS:
            raise InvalidRequestError(f"sample {index}: must be a list of 1 to {_MAX_ARRAYS} arrays")
        arrays = [_array(index, array) for array in wire.arrays]
        self._check(index, [array.dtype.name for array in arrays], [array.ndim for array in arrays])
        left = iter(arrays)
        return index, self._rebuild(self._example, left), sum(array.nbytes for array in arrays)

    def _check(self, index: int, dtypes: Sequence[str], dimensions: Sequence[int]) -> None:
        if dtypes != self._dtypes or dimensions != self._dimensions:
            raise InvalidRequestError(
                f"sample {index}: its arrays are {_describe(dtypes, dimensions)}, but those of the samples "
                f"here are {_describe(self._dtypes, self._dimensions)}"
            )

    def _rebuild(self, example: Any, arrays: Any) -> Any:
        if isinstance(example, (bool, int, float, complex)):
            return type(example)(next(arrays).item())
        if isinstance(example, Mapping):
            return {key: self._rebuild(value, arrays) for key, value in example.items()}
        if isinstance(example, (list, tuple)):
            values = [self._rebuild(value, arrays) for value in example]
            return type(example)(*values) if hasattr(example, "_fields") else type(example)(values)
        return self._revive(example, next(arrays))


def _arrays(sample: Any) -> list[NDArray[Any]]:
    """Return all numbers and arrays of a sample, as arrays, in the order in which it nests them."""
    if isinstance(sample, Mapping):
        return [array for value in sample.values() for array in _arrays(value)]
    if isinstance(sample, (list, tuple)):
        return [array for value in sample for array in _arrays(value)]
    if isinstance(sample, (bool, int, float, complex)) or hasattr(sample, "shape"):
        array = np.asarray(sample)
        if array.dtype.name in DTYPES:
            return [array]
        raise InvalidRequestError(f"a sample has an array of {array.dtype}: only numbers can be moved")
    raise InvalidRequestError(
        f"a sample has a {type(sample).__name__} in it: only arrays and numbers can be moved, in tuples, "
        f"lists and dictionaries"
    )


def _array(index: int, wire: Any) -> NDArray[Any]:
    name = check.text(f"sample {index}, dtype", wire.dtype)
    if name not in DTYPES:
        raise InvalidRequestError(
            f"sample {index}, dtype {name!r}: must be one of {', '.join(sorted(DTYPES))}"
        )
    if type(wire.shape) is not list or len(wire.shape) > _MAX_DIMENSIONS:
        raise InvalidRequestError(f"sample {index}, shape: must be a list of at most {_MAX_DIMENSIONS}")
    shape = [check.integer(f"sample {index}, shape", size, 0, 2**31) for size in wire.shape]
    dtype = np.dtype(name)
    if type(wire.data) is not bytes or len(wire.data) != math.prod(shape) * dtype.itemsize:
        raise InvalidRequestError(
            f"sample {index}, data: must be the {math.prod(shape) * dtype.itemsize} bytes of {shape} {name}"
        )
    return np.frombuffer(wire.data, _little(dtype)).astype(dtype).reshape(shape)


def _little(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("<")


def _describe(dtypes: Sequence[str], dimensions: Sequence[int]) -> str:
    return ", ".join(f"{dtype} with {n} dimensions" for dtype, n in zip(dtypes, dimensions, strict=True))
