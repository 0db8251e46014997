"""What a shard holds: runs of elements, each with the optimiser's options for it.

It knows neither gradients nor the wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ps.optimizers import make_optimizer
from rpc.errors import InvalidRequestError

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Group:
    """A run of the shard's elements that share the optimiser's options.

    Attributes:
        elements: How many.
        options: By the names in `idl/parameter_server.thrift`.
        statistics: Whether they are no parameters but statistics, such as batch normalisation's: their
            "gradient" is their new value, and no option applies to them.
    """

    elements: int
    options: Mapping[str, float]
    statistics: bool = False


@dataclass(frozen=True)
class Layout:
    """What a shard holds; the same for every worker of the job.

    Attributes:
        dtype: A name in `DTYPES`.
        optimizer: A name in `ps.optimizers.OPTIMIZERS`.
        groups: The parameter groups, in the order of their elements.

    Raises:
        InvalidRequestError: A value is not allowed.
    """

    dtype: str
    optimizer: str
    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidRequestError(f"dtype {self.dtype!r}: there are {', '.join(DTYPES)}")
        if not self.elements or any(group.elements < 0 for group in self.groups):
            raise InvalidRequestError("groups: they must hold at least one element together")
        if any(group.statistics and group.options for group in self.groups):
            raise InvalidRequestError("groups: statistics have no options")
        if not self.options:
            raise InvalidRequestError("groups: one must have parameters, but all are of statistics")
        # Building an optimiser on nothing checks its name and options.
        make_optimizer(self.optimizer, [torch.zeros(1) for _ in self.options], self.options)

    @property
    def elements(self) -> int:
        """How many numbers the shard holds."""
        return sum(group.elements for group in self.groups)

    @property
    def options(self) -> list[Mapping[str, float]]:
        """Those of the groups that the optimiser steps."""
        return [group.options for group in self.groups if not group.statistics]

    @property
    def nbytes(self) -> int:
        """How many bytes the shard's parameters take."""
        return self.elements * DTYPES[self.dtype].itemsize
