"""How a model's parameters and the optimiser's state lie in flat arrays, and which part each shard has.

Values only; it knows neither the wire nor a framework.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Group:
    """A run of consecutive elements that the optimiser treats alike.

    Attributes:
        elements: How many.
        options: The optimiser's, by the names in `idl/parameter_server.thrift`.
        statistics: Whether they are no parameters but statistics, such as batch normalisation's: what is
            put in place of their gradient is their new value, of which the weighted mean is kept.
    """

    elements: int
    options: dict[str, float]
    statistics: bool = False


@dataclass(frozen=True)
class Tensor:
    """One tensor of the model, as workers compare them; the name is empty where it is not known."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Layout:
    """How a model's parameters lie in the flat arrays.

    Attributes:
        dtype: "float32" or "float64".
        optimizer: A name in `ps.optimizers.OPTIMIZERS`.
        groups: The parameter groups in their order.
        tensors: The model's, in the order of the elements; none, if they are not to be compared.
    """

    dtype: str
    optimizer: str
    groups: tuple[Group, ...]
    tensors: tuple[Tensor, ...] = ()

    @property
    def elements(self) -> int:
        """How many numbers there are."""
        return sum(group.elements for group in self.groups)


@dataclass(frozen=True)
class OptimizerState:
    """The optimiser's state, to be saved or to go on from.

    Attributes:
        steps: That it has taken.
        slots: By the names in `idl/parameter_server.thrift`, (elements,) each.
    """

    steps: int = 0
    slots: dict[str, NDArray[Any]] = field(default_factory=dict)


def shard_bounds(elements: int, shards: int) -> list[tuple[int, int]]:
    """Each shard's part of the flat parameters, from and to; as `idl/parameter_server.thrift` has it."""
    ends = [elements * shard // shards for shard in range(shards + 1)]
    return list(itertools.pairwise(ends))
