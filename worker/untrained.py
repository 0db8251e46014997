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

Leaf = tuple[list[Any], NDArray[np.uint8]]
"""A tensor within an object's state: what JSON can hold to describe it, and its bytes."""


@dataclass(frozen=True)
class Fixed:
    """A tensor that is not trained.

    Attributes:
        name: Its name in the model.
        kind: Its shape and dtype, in words.
        read: Returns its bytes.
        write: Sets it to bytes.
    """

    name: str
    kind: str
    read: Callable[[], NDArray[np.uint8]]
    write: Callable[[NDArray[np.uint8]], None]


class Untrained:
    """What is not trained, of one worker.

    Args:
        framework: The framework's name; workers of another one take nothing.
        tensors: The model's tensors that are not trained, in an order that all workers have.
        also: Other objects with `state_dict` and `load_state_dict`, likewise.
        leaf: Returns an object's tensor as a `Leaf`; None of what is no tensor.
        tensor: Makes a tensor of a `Leaf`.
    """

    def __init__(
        self,
        framework: str,
        tensors: Sequence[Fixed],
        also: Sequence[Any] = (),
        leaf: Callable[[Any], Leaf | None] = lambda value: None,
        tensor: Callable[[Leaf], Any] = lambda leaf: leaf[1],
    ) -> None:
        check_also(also)
        self._framework = framework
        self._tensors = tensors
        self._also = also
        self._leaf = leaf
        self._tensor = tensor

    def __bool__(self) -> bool:
        return bool(self._tensors or self._also)

    def encoded(self) -> NDArray[np.uint8]:
        """Return all of it, (bytes,): of tensors, the first 64 MiB, and checksums of the others.

        Raises:
            InvalidRequestError: An object's state has something else than tensors, numbers and texts.
        """
        parts: list[NDArray[np.uint8]] = []
        tensors, left = [], _SENT
        for one in self._tensors:
            values = one.read()
            is_sent = values.nbytes <= left
            if is_sent:
                left -= values.nbytes
                parts.append(values)
            tensors.append([one.name, one.kind, values.nbytes, None if is_sent else zlib.crc32(values.data)])
        also = [self._outlined(one.state_dict(), one, parts) for one in self._also]
        header = json.dumps([self._framework, tensors, also]).encode()
        begin = np.frombuffer(_LENGTH.pack(len(header)) + header, np.uint8)
        return np.concatenate([begin, *parts])

    def take(self, data: NDArray[np.uint8]) -> None:
        """Take what `encoded` has returned on the first worker.

        Raises:
            InvalidRequestError: This worker's model has other tensors, or other values in one that was not
                sent; or it has other objects.
        """
        end = _LENGTH.size + _LENGTH.unpack_from(data.data)[0]
        framework, tensors, also = json.loads(data[_LENGTH.size : end].tobytes())
        if framework != self._framework:
            return
        rest = data[end:]

        def cut(nbytes: int) -> NDArray[np.uint8]:
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
        if len(also) != len(self._also):
            raise InvalidRequestError(
                f"also: {len(self._also)} objects, but {len(also)} on the first worker: give the same ones"
            )
        for one, outline in zip(self._also, also, strict=True):
            one.load_state_dict(self._filled(outline, cut))

    def _outlined(self, value: Any, of: Any, parts: list[NDArray[np.uint8]]) -> Any:
        """Return a nested state for JSON, with descriptions in place of its tensors, which go to `parts`."""
        if (leaf := self._leaf(value)) is not None:
            parts.append(leaf[1])
            return ["tensor", leaf[0], leaf[1].nbytes]
        if isinstance(value, dict):
            pairs = [[self._outlined(one, of, parts) for one in pair] for pair in value.items()]
            return ["dict", pairs]
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, [self._outlined(one, of, parts) for one in value]]
        if value is None or isinstance(value, bool | int | float | str):
            return ["value", value]
        raise InvalidRequestError(
            f"also: the state of {type(of).__name__} has a {type(value).__name__}, which is not sent: "
            f"tensors, numbers, texts, lists and dictionaries are"
        )

    def _filled(self, outline: Any, cut: Callable[[int], NDArray[np.uint8]]) -> Any:
        """Return the nested state that was outlined."""
        match outline:
            case ["tensor", described, nbytes]:
                return self._tensor((described, cut(nbytes)))
            case ["dict", pairs]:
                return dict([self._filled(one, cut) for one in pair] for pair in pairs)
            case ["list", values]:
                return [self._filled(one, cut) for one in values]
            case ["tuple", values]:
                return tuple(self._filled(one, cut) for one in values)
            case [_, value]:
                return value


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
