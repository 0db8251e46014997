"""A flat array whose parts are sent, each from its first element on, while it is being filled."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idl.errors import EvenpaceError


class GrowingArray:
    """A flat array, how far each of its parts is filled and sent; one thread fills it, others send.

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
        self._begins = [begin * array.itemsize for begin, _ in bounds]
        self._itemsize = array.itemsize
        self._bounds = bounds
        self._ends = list(self._begins)  # bytes up to which each part is filled
        self._sent = list(self._begins)  # and sent
        # Ends up to which the parts were filled, not sent by all, and what is called once they are.
        self._filled: deque[tuple[list[int], Callable[[], None]]] = deque()
        self._changed = threading.Condition()
        self._error: EvenpaceError | None = None

    def part(self, number: int) -> "GrowingPart":
        """Return a part, to be sent."""
        return GrowingPart(self, number)

    def advance(self, ends: Sequence[int], when_sent: Callable[[], None] = lambda: None) -> None:
        """Note that each part is filled up to an element of the array.

        Args:
            ends: The elements, one for each part.
            when_sent: Called by any thread once all parts are sent up to there; never if one is sent again.
        """
        for begin, end in zip(self._ends, ends, strict=True):
            self._fill(begin // self._itemsize, end)
        with self._changed:
            self._ends = [end * self._itemsize for end in ends]
            self._filled.append((self._ends, when_sent))
            self._tell()
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
        """Wait for bytes of a part after the first `sent`; return those that were filled by one `advance`.

        Raises:
            EvenpaceError: The array was given up.
        """
        begin = self._begins[number] + sent
        with self._changed:
            self._wait_until_filled(number, begin + 1)
            return self._bytes[begin : next(ends[number] for ends, _ in self._filled if ends[number] > begin)]

    def whole(self, number: int) -> memoryview:
        """Wait for all bytes of a part, and return them (EvenpaceError: the array was given up)."""
        begin = self._begins[number]
        end = begin + self.nbytes(number)
        with self._changed:
            self._wait_until_filled(number, end)
            return self._bytes[begin:end]

    def note_sent(self, number: int, sent: int) -> None:
        """Note that the first bytes of a part were sent."""
        with self._changed:
            self._sent[number] = self._begins[number] + sent
            self._tell()

    def _wait_until_filled(self, number: int, end: int) -> None:
        self._changed.wait_for(lambda: self._error or self._ends[number] >= end)
        if self._error is not None:
            raise self._error

    def _tell(self) -> None:
        """Tell of the ends up to which all parts are sent now."""
        while self._filled and all(
            sent >= end for sent, end in zip(self._sent, self._filled[0][0], strict=True)
        ):
            _, when_sent = self._filled.popleft()
            when_sent()


class GrowingPart:
    """A part of a `GrowingArray`, as a `rpc.client.GrowingBulk`."""

    def __init__(self, array: GrowingArray, number: int) -> None:
        self._array = array
        self._number = number
        self.nbytes = array.nbytes(number)  # its bytes

    def after(self, sent: int) -> memoryview:
        """Wait for bytes after the first `sent`, and return those that were filled at once.

        Raises:
            EvenpaceError: The array was given up.
        """
        return self._array.after(self._number, sent)

    def note_sent(self, sent: int) -> None:
        """Note that the first bytes were sent."""
        self._array.note_sent(self._number, sent)

    def whole(self) -> memoryview:
        """Wait for all bytes, and return them; raise as `after` does."""
        return self._array.whole(self._number)
