"""Values that a worker gets from the BatchSizeManager, and from the parameter server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class ShardState:
    """The versions of a fenced shard, which accepts no calls of earlier attempts."""

    name: str  # the shard's name in messages
    initialised: bool  # whether it has parameters
    version: int  # steps of the optimiser so far; meaningless until initialised
    checkpoints: Sequence[int]  # versions that it can go back to
    complete: bool = False  # whether it has the whole gradient of the step to the next version
    # By version that it can go on from, epoch and first position of its batch, as far as known.
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def reachable(self) -> set[int]:
        """Return the versions that the shard can go on from."""
        return {self.version, *self.checkpoints, *([self.version + 1] if self.complete else [])}

    def __str__(self) -> str:
        if not self.initialised:
            return f"{self.name} has no parameters of this job"
        kept = ", ".join(map(str, self.checkpoints)) or "none"
        return f"{self.name} is at version {self.version}, its checkpoints: {kept}"
