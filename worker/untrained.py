"""What a model has beside the parameters that are trained, as bytes that workers take from the first one.

That is frozen layers, buffers, and the states of other objects. This module knows no framework.
"""

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idl.errors import InvalidRequestError

_LENGTH = struct.Struct("<Q")
_SENT = 64 * 2**20  # bytes of tensors that are sent, those of large frozen models by their checksums alone

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Fixed:
    """A tensor that is not trained."""

    name: str  # its name in the model
    kind: str  # its shape and dtype, in words
    read: Callable[[], Bytes]  # returns its bytes
    write: Callable[[Bytes], None]  # sets it to bytes


class Untrained:
    """What is not trained, of one worker.

    Args:
        framework: The framework's name; workers of another one take nothing.
        tensors: The model's tensors that are not trained, in an order that all workers have.
        also: Other objects with `state_dict` and `load_state_dict`, likewise.
        outlined: Returns the list of their states as text, and the bytes of each of their tensors.
        filled: Returns the states of such a text, with the bytes of tensors that it cuts, in their order, off
            what was sent, by their number.
    """

    def __init__(
        self,
        framework: str,
        tensors: Sequence[Fixed],
        also: Sequence[Any] = (),
        outlined: Callable[[list[Any]], tuple[str, list[Bytes]]] = lambda states: ("", []),
        filled: Callable[[str, Callable[[int], Bytes]], list[Any]] = lambda text, cut: [],
    ) -> None:
        check_also(also)
        self._framework = framework
        self._tensors = tensors
        self._also = also
        self._outlined = outlined
        self._filled = filled

    def __bool__(self) -> bool:
        return bool(self._tensors or self._also)

    def encoded(self) -> Bytes:
        """Return all of it, (bytes,): of tensors, the first 64 MiB, and checksums of the others.

        Raises:
            InvalidRequestError: An object's state cannot be sent.
        """
        parts: list[Bytes] = []
        tensors, left = [], _SENT
        for one in self._tensors:
            values = one.read()
            is_sent = values.nbytes <= left
            if is_sent:
                left -= values.nbytes
                parts.append(values)
            tensors.append([one.name, one.kind, values.nbytes, None if is_sent else zlib.crc32(values.data)])
        also, of_also = self._outlined([one.state_dict() for one in self._also])
        header = json.dumps([self._framework, tensors, len(self._also), also]).encode()
        begin = np.frombuffer(_LENGTH.pack(len(header)) + header, np.uint8)
        return np.concatenate([begin, *parts, *of_also])

    def take(self, data: Bytes) -> None:
        """Take what `encoded` has returned on the first worker.

        Raises:
            InvalidRequestError: This worker's model has other tensors, or other values in one that was not
                sent; or it has other objects.
        """
        end = _LENGTH.size + _LENGTH.unpack_from(data.data)[0]
        framework, tensors, objects, also = json.loads(data[_LENGTH.size : end].tobytes())
        if framework != self._framework:
            return
        rest = data[end:]

        def cut(nbytes: int) -> Bytes:
            nonlocal rest
            taken, rest = rest[:nbytes], rest[nbytes:]
            return taken

        for theirs, ours in zip_longest(tensors, self._tensors):
            there = f"{theirs[0]} of {theirs[1]}" if theirs else "nothing more"
            here = f"{ours.name} of {ours.kind}" if ours else "nothing more"
            if there != here:
                raise InvalidRequestError(
                    f"of what is not trained, this worker's model has {here} where the first worker's has "
                    f"{there}: is it the same model?"
                )
            values, checksum = ours.read(), theirs[3]
            if checksum is None:
                if not np.array_equal(values, given := cut(theirs[2])):
                    ours.write(given)
            elif zlib.crc32(values.data) != checksum:
                raise InvalidRequestError(
                    f"{here} is not trained, and has other values than the first worker's; it is too large "
                    f"to be sent: seed the framework's random numbers before the model is made, or load "
                    f"these values from a file, on every worker"
                )
        if objects != len(self._also):
            raise InvalidRequestError(
                f"also: {len(self._also)} objects, but {objects} on the first worker: give the same ones"
            )
        for one, state in zip(self._also, self._filled(also, cut), strict=True):
            one.load_state_dict(state)


def check_also(also: Sequence[Any]) -> None:
    """Check that objects have a state that can be sent.

    Raises:
        InvalidRequestError: One has no `state_dict` and `load_state_dict`.
    """
    for one in also:
        if not callable(getattr(one, "state_dict", None)) or not hasattr(one, "load_state_dict"):
            raise InvalidRequestError(
                f"also: {type(one).__name__} has no state_dict and load_state_dict, by which its state "
                f"could reach workers that join"
            )
