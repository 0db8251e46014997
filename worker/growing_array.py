"""A flat array whose parts are sent, each from its first element on, while it is being filled."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idl.errors import EvenpaceError


class GrowingArray:
    """A flat array, and how far each of its parts is filled; one thread fills it, others read.

    Args:
        array: (elements,).
        bounds: The parts, (begin, end) in elements.
        fill: Called before elements from one to another are sent, which have not been before.
    """

    def __init__(
        self,
        array: NDArray[Any],
        bounds: Sequence[tuple[int, int]],
        fill: Callable[[int, int], None] = lambda begin, end: None,
    ) -> None:
        self._fill = fill
        self._bytes = array.view(np.uint8).data
        self._itemsize = array.itemsize
        self._bounds = bounds
        self._ends = [begin for begin, _ in bounds]
        self._changed = threading.Condition()
        self._error: EvenpaceError | None = None

    def part(self, number: int) -> "GrowingPart":
        """Return a part, to be sent."""
        return GrowingPart(self, number)

    def advance(self, ends: Sequence[int]) -> None:
        """Note that each part is filled up to an element of the array."""
        for begin, end in zip(self._ends, ends, strict=True):
            self._fill(begin, end)
        with self._changed:
            self._ends = list(ends)
            self._changed.notify_all()

    def complete(self) -> None:
        """Note that all parts are filled."""
        self.advance([end for _, end in self._bounds])

    def give_up(self, error: EvenpaceError) -> None:
        """Let those who wait for more raise an error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def nbytes(self, number: int) -> int:
        """Return the bytes of a part."""
        begin, end = self._bounds[number]
        return (end - begin) * self._itemsize

    def after(self, number: int, sent: int) -> memoryview:
        """Wait for bytes of a part after the first `sent`, and return those that there are.

        Raises:
            EvenpaceError: The array was given up.
        """
        begin = self._bounds[number][0] * self._itemsize + sent
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._ends[number] * self._itemsize > begin)
            if self._error is not None:
                raise self._error
            return self._bytes[begin : self._ends[number] * self._itemsize]


class GrowingPart:
    """A part of a `GrowingArray`, as a `rpc.client.GrowingBulk`.

    Attributes:
        nbytes: Its bytes.
    """

    def __init__(self, array: GrowingArray, number: int) -> None:
        self._array = array
        self._number = number
        self.nbytes = array.nbytes(number)

    def after(self, sent: int) -> memoryview:
        """Wait for bytes after the first `sent`, and return those that there are.

        Raises:
            EvenpaceError: The array was given up.
        """
        return self._array.after(self._number, sent)
