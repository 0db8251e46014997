"""A flat array that arrives in blocks, the last one first, from several services at once."""

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ArrivingArray:
    """A flat array, and how much of it has arrived; a thread for each of its parts fills it, others read.

    Args:
        array: (elements,).
        bounds: The parts, (begin, end) in elements.
        ends: Of each block, the element of each part up to which the block goes, ascending; (blocks, parts).
    """

    def __init__(
        self, array: NDArray[Any], bounds: Sequence[tuple[int, int]], ends: Sequence[Sequence[int]]
    ) -> None:
        self._array = array
        self._edges = [
            [begin, *(block[number] for block in ends)] for number, (begin, _) in enumerate(bounds)
        ]
        self._missing = [len(ends)] * len(bounds)  # of each part, the blocks that have not arrived
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def part(self, number: int) -> "ArrivingPart":
        """Return a part, to be filled."""
        return ArrivingPart(self, number)

    def cuts(self, number: int) -> list[int]:
        """Return the elements of a part, counted from its first, at which blocks meet."""
        begin, *inner, _ = self._edges[number]
        return [edge - begin for edge in inner]

    def views(self, number: int) -> list[memoryview]:
        """Return the bytes of a part's blocks, from the last to the first."""
        data, itemsize = self._array.view(np.uint8).data, self._array.itemsize
        edges = [edge * itemsize for edge in self._edges[number]]
        return [data[begin:end] for begin, end in itertools.pairwise(edges)][::-1]

    def note(self, number: int, missing: int) -> None:
        """Note how many blocks of a part have not arrived."""
        with self._changed:
            self._missing[number] = min(missing, self._missing[number])
            self._changed.notify_all()

    def give_up(self, error: BaseException) -> None:
        """Let those who wait for more raise an error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def wait(self, block: int) -> None:
        """Wait until a block, by its number from 0, and all after it have arrived.

        Raises:
            BaseException: The array was given up before, with this error.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error or max(self._missing) <= block)
            if max(self._missing) > block and self._error is not None:
                raise self._error


class ArrivingPart:
    """A part of an `ArrivingArray`, as a `rpc.client.BulkParts`.

    Attributes:
        views: The bytes of its blocks, from the last to the first.
    """

    def __init__(self, array: ArrivingArray, number: int) -> None:
        self._array = array
        self._number = number
        self.views = array.views(number)

    def arrived(self, number: int) -> None:
        """Note that a block, counted from the last, has arrived."""
        self._array.note(self._number, len(self.views) - 1 - number)
