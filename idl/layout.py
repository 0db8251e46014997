"""Layouts of a model's parameters in flat arrays, as workers and the parameter server's shards share them."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from idl.errors import InvalidRequestError

ITEM_BYTES = {"float32": 4, "float64": 8}
"""Bytes of an element, by dtype."""

UNTRAINED = "untrained"
"""Where a slot of the optimiser's state is named: bytes of what the model has beside its parameters."""


@dataclass(frozen=True)
class Group:
    """A run of consecutive elements that the optimiser treats alike.

    Attributes:
        statistics: Whether the elements are statistics, such as batch normalisation's, and no parameters: in
            place of a gradient a worker sends their new values, whose weighted mean is kept, and no option
            applies.
        number: The number of the script's parameter group that the elements belong to, for messages; None if
            it is that of the run.
    """

    elements: int  # number of elements
    options: Mapping[str, float]  # the optimiser's options, by the names in `idl/parameter_server.thrift`
    statistics: bool = False
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """The name, shape and dtype of a tensor of the model; an unknown name is empty."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        name = f"{self.name!r} of " if self.name else ""
        return f"{name}shape {self.shape}, {self.dtype}"

    def agrees_with(self, other: "Tensor") -> bool:
        """Return whether two tensors have the same shape and dtype, and the same name if both are known."""
        same_name = not self.name or not other.name or self.name == other.name
        return same_name and (self.shape, self.dtype) == (other.shape, other.dtype)


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a job's flattened parameters that a shard holds."""

    shard: int  # the shard's number, from 0
    shards: int  # number of the job's shards
    first: int  # the flattened parameters' element that is the part's first

    def __str__(self) -> str:
        return f"part {self.shard} of {self.shards}, from element {self.first} on"


@dataclass(frozen=True)
class Layout:
    """The layout of parameters in flat arrays: a whole model's at a worker, a part of them at a shard.

    Attributes:
        order: A text that differs where the tensors' elements lie in another order in the flat arrays; empty
            where the tensors follow each other.

    Raises:
        InvalidRequestError: A value is not allowed.
    """

    dtype: str  # a name in `ITEM_BYTES`
    optimizer: str  # an optimiser's name in `idl/parameter_server.thrift`
    groups: tuple[Group, ...]  # the parameter groups, in the order of their elements
    # The model's tensors, in an order that all workers have; empty if they are not compared.
    tensors: tuple[Tensor, ...] = ()
    order: str = ""

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise InvalidRequestError(f"dtype {self.dtype!r}: there are {', '.join(ITEM_BYTES)}")
        if not self.elements or any(group.elements < 0 for group in self.groups):
            raise InvalidRequestError("groups: they must hold at least one element together")
        if any(group.statistics and group.options for group in self.groups):
            raise InvalidRequestError("groups: statistics have no options")
        if not self.options:
            raise InvalidRequestError("groups: one must have parameters, but all are of statistics")

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return sum(group.elements for group in self.groups)

    @property
    def ranges(self) -> Iterator[tuple[int, int, Group]]:
        """Yield the groups, each with the range of its elements, (begin, end)."""
        begin = 0
        for group in self.groups:
            yield begin, begin + group.elements, group
            begin += group.elements

    @property
    def options(self) -> list[Mapping[str, float]]:
        """Return the options of each group that the optimiser steps; statistics are left out."""
        return [group.options for group in self.groups if not group.statistics]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the parameters."""
        return self.elements * ITEM_BYTES[self.dtype]


def shard_bounds(elements: int, shards: int) -> list[tuple[int, int]]:
    """Return each shard's range of the flat parameters, (begin, end), as in `idl/parameter_server.thrift`."""
    ends = [elements * shard // shards for shard in range(shards + 1)]
    return list(itertools.pairwise(ends))


def shard_parts(elements: int, shards: int) -> list[Part]:
    """Return each shard's part of the flat parameters."""
    return [Part(shard, shards, begin) for shard, (begin, _) in enumerate(shard_bounds(elements, shards))]
