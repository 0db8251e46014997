"""A few numbers of a few samples, by which workers see whether they have the same data set.

They are numbers and no digests, since devices differ in the last digits of what they compute.
"""

import contextlib
import dataclasses
import itertools
import time
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from worker.data.randomness import are_alike, own_generators
from worker.data.source import Source

Fingerprints = tuple[tuple[float, ...], ...]
"""Of each sample that was looked at, pairs of numbers; empty where it cannot be compared."""

_SAMPLES = 4  # that are looked at
_SEEDS = (0, 1, 1)  # with which each is loaded
_ELEMENTS = 256  # of an array
_LEAVES = 16  # of a sample
_SECONDS = 2.0  # after which no other sample is looked at


def fingerprints(source: Source) -> Fingerprints:
    """Return the fingerprints of samples at fixed places of a data set.

    What is random is left out: a data set with generators of its own, and samples that differ when they are
    loaded once more with other seeds.
    """
    if own_generators("dataset", source.drawing["dataset"]):
        return ()
    places = [place * (len(source) - 1) // (_SAMPLES - 1) for place in range(_SAMPLES)]
    began, found = time.monotonic(), list[tuple[float, ...]]()
    with contextlib.suppress(Exception):  # whatever the data set raises
        samples = source.load_apart([(seed, place) for place in places for seed in _SEEDS])
        for _ in places:
            one, *others = itertools.islice(samples, len(_SEEDS))
            is_fixed = all(are_alike(one, other) for other in others)
            numbers = tuple(n for leaf in _leaves(one) for n in _numbers(leaf)) if is_fixed else ()
            found.append(numbers[: 2 * _LEAVES])
            if time.monotonic() - began > _SECONDS:
                break
    return tuple(found)


def _leaves(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the arrays, numbers and texts of a sample, in an order that does not depend on the process.

    Raises:
        ValueError: It has something else.
    """
    if isinstance(value, dict):
        for key in sorted(value, key=repr):
            yield from _leaves(value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _leaves(dataclasses.astuple(value))
    elif isinstance(value, str | bytes):
        yield np.array(zlib.crc32(value.encode() if isinstance(value, str) else value))
    elif value is not None:
        if type(value).__module__.partition(".")[0] == "torch":
            value = value.detach().cpu()
            value = value.float() if value.is_floating_point() else value
        array = np.asarray(value)
        if array.dtype.kind not in "biufc":
            raise ValueError(f"a sample has a {type(value).__name__}")
        yield array


def _numbers(leaf: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return two means over some elements, of what is positive and negative, which depend on their order."""
    flat = leaf.reshape(-1)
    flat = (flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat).astype(np.float64)
    some = np.nan_to_num(flat[:: -(-len(flat) // _ELEMENTS) or 1], posinf=0.0, neginf=0.0)
    if not len(some):
        return 0.0, 0.0
    weights = 1 + np.arange(len(some)) * 0.6180339887498949 % 1
    return tuple(float(np.mean(weights * np.maximum(side, 0))) for side in (some, -some))  # type: ignore[return-value]
