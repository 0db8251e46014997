"""Values that a worker and the BatchSizeManager exchange."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from idl.synchronisation import Synchronisation


@dataclass(frozen=True)
class Joined:
    """The answer to `join`, without the first assignments.

    Attributes:
        run: The run's random name, drawn when the job was created; part of its name at the parameter server.
        synchronisation: How the workers wait for each other.
        lookahead: Iterations that are planned ahead of the reports.
        lost: Slices that were lost before this worker joined, as `Lost` of batchsize_manager.thrift.
        host: This machine's address from which it reaches the manager.
    """

    run: str
    synchronisation: Synchronisation
    lookahead: int
    lost: Sequence[Any]
    host: str
