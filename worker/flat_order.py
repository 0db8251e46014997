"""The order in which tensors' elements lie in the flat arrays that workers and shards exchange.

A shard holds a contiguous range of the flat array, and a push is sent from its first element to its last. So
that the gradient can be sent while the backward pass computes it, the last tensors come first, in buckets,
and each bucket is spread over all shards. This module knows no framework.
"""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idl.errors import InvalidRequestError
from idl.layout import Group, shard_bounds

BUCKET_MB = 1.0  # MiB of a bucket where a script does not say

_MOST_BUCKETS = 64  # of a large model, whose buckets are larger
_UNBOUNDED = 2**62  # elements
_BITS = {4: np.uint32, 8: np.uint64}  # by bytes of an element


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of a tensor's elements that lie next to each other in the flat array."""

    tensor: int  # the tensor's number
    begin: int  # the first of its elements
    end: int  # the element after the last
    first: int  # where the run begins in the flat array

    def __len__(self) -> int:
        return self.end - self.begin


class FlatOrder:
    """The order of tensors' elements: bucket after bucket within each shard's range.

    It follows from its arguments alone, so that all workers of a job have the same.

    Args:
        sizes: Elements of each tensor.
        groups: Each tensor's group; within a bucket, a group's tensors are next to each other.
        ready: The tensors' numbers in the order in which a backward pass computes their gradients; of no
            effect where there is one bucket.

    Attributes:
        ends: For each bucket, the flat element of each shard's range up to which the range is complete once
            this bucket and those before it are.
    """

    def __init__(
        self, sizes: Sequence[int], groups: Sequence[int], ready: Sequence[int], shards: int, bucket: int
    ) -> None:
        self.elements = sum(sizes)
        self._tensors = len(sizes)
        # The numbers of the tensors of each bucket, in the order of the buckets.
        self.buckets = [
            sorted(tensors, key=lambda tensor: groups[tensor]) for tensors in _buckets(sizes, ready, bucket)
        ]
        bounds = shard_bounds(self.elements, shards)
        positions = [begin for begin, _ in bounds]
        left = [end - begin for begin, end in bounds]
        self.ends: list[tuple[int, ...]] = []
        by_shard: list[list[Piece]] = [[] for _ in bounds]
        for tensors in self.buckets:
            shares = _divided(sum(sizes[tensor] for tensor in tensors), left)
            for shard, pieces in enumerate(_cut(tensors, sizes, shares)):
                for tensor, begin, end in pieces:
                    by_shard[shard].append(Piece(tensor, begin, end, positions[shard]))
                    positions[shard] += end - begin
            left = [all_of_it - share for all_of_it, share in zip(left, shares, strict=True)]
            self.ends.append(tuple(positions))
        # The pieces in the order of the flat array.
        self.pieces = [piece for pieces in by_shard for piece in pieces]
        # Number of a group, and elements of it that follow each other in the flat array.
        self.runs = [
            (group, sum(map(len, pieces)))
            for group, pieces in itertools.groupby(self.pieces, lambda piece: groups[piece.tensor])
        ]

    @property
    def name(self) -> str:
        """A text by which orders of the same tensors differ; empty where the tensors follow each other."""
        described = [(piece.tensor, piece.begin, piece.end) for piece in self.pieces]
        if described == sorted(described):
            return ""
        return hashlib.blake2b(repr(described).encode(), digest_size=8).hexdigest()

    def groups(self, options: Sequence[Mapping[str, float]]) -> tuple[Group, ...]:
        """Return the groups of a layout: the runs of each group with its options, and those of statistics.

        Args:
            options: Of each group; the one after them has the statistics.
        """
        return tuple(
            Group(elements, options[number], number=number)
            if number < len(options)
            else Group(elements, {}, statistics=True)
            for number, elements in self.runs
        )

    def parts(self, flat: NDArray[Any]) -> list[list[NDArray[Any]]]:
        """Return for each tensor views of its elements in a flat array, (elements,), one after the other."""
        parts: list[list[NDArray[Any]]] = [[] for _ in range(self._tensors)]
        for piece in sorted(self.pieces, key=lambda piece: piece.begin):
            parts[piece.tensor].append(flat[piece.first : piece.first + len(piece)])
        return parts


class FlatArrays:
    """The values of tensors in a flat array whose elements lie in a `FlatOrder`, as NumPy arrays.

    Args:
        flat: (elements,).
        order: The order of the tensors' elements.
    """

    def __init__(self, flat: NDArray[Any], order: FlatOrder, shapes: Sequence[tuple[int, ...]]) -> None:
        self._nothing = flat[:0]
        self._parts = order.parts(flat)
        self._shapes = shapes

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return a copy of a tensor's values, of its shape."""
        return np.concatenate([self._nothing, *self._parts[number]]).reshape(self._shapes[number])

    def __setitem__(self, number: int, values: ArrayLike) -> None:
        """Copy a tensor's values, of its shape, into the flat array."""
        elements, begin = np.reshape(values, -1), 0
        for part in self._parts[number]:
            part[:] = elements[begin : begin + len(part)]
            begin += len(part)

    def has_bits_of(self, number: int, values: ArrayLike) -> bool:
        """Return whether a tensor has some values, of its shape, bit by bit, NaNs included."""
        own = np.ascontiguousarray(values, self._nothing.dtype)
        return has_bits_of(self._parts[number], own.reshape(-1))


def has_bits_of(parts: Sequence[NDArray[Any]], elements: NDArray[Any]) -> bool:
    """Return whether flat arrays, one after the other, make up (elements,), bit by bit, NaNs included."""
    begin, bits = 0, _BITS[elements.itemsize]
    for part in parts:
        own = elements[begin : begin + len(part)]
        if not np.array_equal(part.view(bits), own.view(bits)):
            return False
        begin += len(part)
    return begin == len(elements)


def bucket_elements(bucket_cap_mb: float | None) -> int:
    """Return the elements with which a bucket of so many MiB of float32 is complete; None: of no model's.

    Raises:
        InvalidRequestError: It is not above 0.
    """
    if bucket_cap_mb is None:
        return _UNBOUNDED
    if not bucket_cap_mb > 0:
        raise InvalidRequestError(f"bucket_cap_mb {bucket_cap_mb}: must be above 0, or None")
    return math.ceil(min(bucket_cap_mb * 2**18, _UNBOUNDED))


def backward_order(
    groups: Sequence[Sequence[int]],
    statistics: Sequence[int],
    places: Sequence[int],
    shards: int,
    bucket: int,
) -> FlatOrder:
    """Return the order of the elements of a model's parameters, group by group, and of its statistics.

    Args:
        groups: Elements of each parameter that is trained, by group.
        statistics: Elements of each of the statistics, which come last, as one more group.
        places: Each parameter's place in the forward pass; a backward pass goes from the last to the first.
    """
    trained = len(places)
    ready = sorted(range(trained), key=lambda number: (places[number], number), reverse=True)
    return FlatOrder(
        [*itertools.chain(*groups), *statistics],
        [*(number for number, group in enumerate(groups) for _ in group), *[len(groups)] * len(statistics)],
        [*ready, *range(trained, trained + len(statistics))],
        shards,
        bucket,
    )


def _buckets(sizes: Sequence[int], ready: Sequence[int], bucket: int) -> list[list[int]]:
    least = max(bucket, sum(sizes) // _MOST_BUCKETS)
    buckets: list[list[int]] = [[]]
    held = 0
    for tensor in ready:
        if held >= least:
            buckets.append([])
            held = 0
        buckets[-1].append(tensor)
        held += sizes[tensor]
    return buckets if len(buckets) > 1 else [sorted(ready)]


def _divided(elements: int, left: Sequence[int]) -> list[int]:
    """Divide a bucket's elements among shards in proportion to what is left of their ranges."""
    total = sum(left)
    ends = [0, *itertools.accumulate(left)]
    # Rounded down at each end, a share is at most a range's rest, since elements <= total.
    cuts = [elements * end // total if total else 0 for end in ends]
    return [after - before for before, after in itertools.pairwise(cuts)]


def _cut(
    bucket: Sequence[int], sizes: Sequence[int], shares: Sequence[int]
) -> list[list[tuple[int, int, int]]]:
    """Cut a bucket's tensors into consecutive shares; return tensor, begin and end of each piece."""
    cut: list[list[tuple[int, int, int]]] = []
    tensors = iter(bucket)
    tensor, begin = next(tensors, -1), 0
    for share in shares:
        pieces = []
        left = share
        while left:
            while begin == sizes[tensor]:
                tensor, begin = next(tensors), 0
            taken = min(left, sizes[tensor] - begin)
            pieces.append((tensor, begin, begin + taken))
            begin += taken
            left -= taken
        cut.append(pieces)
    return cut
