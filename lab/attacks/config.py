"""The configuration of an attack: a value that checks itself, and imports little."""

from dataclasses import dataclass
from math import inf
from typing import Annotated

from idl.settings import Checked, Setting


@dataclass(frozen=True)
class HostileConfig(Checked):
    """The length and the size of an attack (InvalidRequestError: a value is not allowed)."""

    seconds: Annotated[float, Setting("At most.", name="minutes", unit=60, above=0, below=inf)] = 60.0
    # The inputs at most; None for no limit.
    inputs: Annotated[int | None, Setting("At most.  [default: no limit]", least=1)] = None
    seed: Annotated[int, Setting("Of all that is thrown.", least=0)] = 0
    pace: float = 0.05  # seconds that an honest worker computes for in each iteration
    memory_mib: int = 16  # MiB of parameters that the shard may hold
    tokens: Annotated[
        bool,
        Setting("Let the services ask for tokens; without, attackers leave the honest job's name alone."),
    ] = True
