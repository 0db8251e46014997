"""An optimiser's state in flat arrays, as a worker saves it or resumes from it."""

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class OptimizerState:
    """The optimiser's state, to be saved or to resume from."""

    steps: int = 0  # steps that it has taken
    # Flat arrays by the names in `idl/parameter_server.thrift`, (elements,) each.
    slots: dict[str, NDArray[Any]] = field(default_factory=dict)
