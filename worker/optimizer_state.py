"""An optimiser's state in flat arrays, as a worker saves it or goes on from it."""

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class OptimizerState:
    """The optimiser's state, to be saved or to go on from.

    Attributes:
        steps: That it has taken.
        slots: By the names in `idl/parameter_server.thrift`, (elements,) each.
    """

    steps: int = 0
    slots: dict[str, NDArray[Any]] = field(default_factory=dict)
