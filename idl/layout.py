"""How a model's parameters lie in flat arrays: what workers and shards of the parameter server agree on."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from idl.errors import InvalidRequestError

ITEM_BYTES = {"float32": 4, "float64": 8}
"""Bytes of an element, by the dtypes that there are."""


@dataclass(frozen=True)
class Group:
    """A run of consecutive elements that the optimiser treats alike.

    Attributes:
        elements: How many.
        options: The optimiser's, by the names in `idl/parameter_server.thrift`.
        statistics: Whether they are no parameters but statistics, such as batch normalisation's: what is put
            in place of their gradient is their new value, of which the weighted mean is kept, and no option
            applies.
    """

    elements: int
    options: Mapping[str, float]
    statistics: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the model; the name is empty where the worker does not know it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        name = f"{self.name!r} of " if self.name else ""
        return f"{name}shape {self.shape}, {self.dtype}"

    def agrees_with(self, other: "Tensor") -> bool:
        """Whether the two may be the same; a name that is not known is no difference."""
        same_name = not self.name or not other.name or self.name == other.name
        return same_name and (self.shape, self.dtype) == (other.shape, other.dtype)


@dataclass(frozen=True)
class Layout:
    """How parameters lie in the flat arrays: a whole model's at a worker, a part of them at a shard.

    Attributes:
        dtype: A name in `ITEM_BYTES`.
        optimizer: A name of `idl/parameter_server.thrift`.
        groups: The parameter groups, in the order of their elements.
        tensors: The model's, in the same order; none, if they are not to be compared.

    Raises:
        InvalidRequestError: A value is not allowed.
    """

    dtype: str
    optimizer: str
    groups: tuple[Group, ...]
    tensors: tuple[Tensor, ...] = ()

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
        """How many numbers there are."""
        return sum(group.elements for group in self.groups)

    @property
    def options(self) -> list[Mapping[str, float]]:
        """Those of the groups that the optimiser steps."""
        return [group.options for group in self.groups if not group.statistics]

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return self.elements * ITEM_BYTES[self.dtype]


def shard_bounds(elements: int, shards: int) -> list[tuple[int, int]]:
    """Each shard's part of the flat parameters, from and to; as `idl/parameter_server.thrift` has it."""
    ends = [elements * shard // shards for shard in range(shards + 1)]
    return list(itertools.pairwise(ends))
