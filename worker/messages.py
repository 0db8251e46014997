"""Values that a worker and the BatchSizeManager exchange."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from idl.synchronisation import Synchronisation


@dataclass(frozen=True)
class Joined:
    """The answer to `join`, without the first assignments."""

    # The run's random name, drawn when the job was created; part of its name at the parameter server.
    run: str
    synchronisation: Synchronisation  # how the workers wait for each other
    lookahead: int  # iterations that are planned ahead of the reports
    # Slices that were lost before this worker joined, as `Lost` of batchsize_manager.thrift.
    lost: Sequence[Any]
    host: str  # this machine's address from which it reaches the manager
