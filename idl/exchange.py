"""Exchanges: the ways in which a job's workers bring their gradients together, named when they join."""

from dataclasses import dataclass
from typing import Literal

PARAMETER_SERVER = "parameter_server"
"""Workers push to the shards of a parameter server, which keeps the parameters."""

FIXED_GROUP = "fixed_group"
"""Workers all-reduce in a process group that something else has formed, such as torchrun, and that stays."""

FORMED_GROUP = "formed_group"
"""Workers all-reduce in a process group that the manager forms, another one in each attempt."""

ExchangeName = Literal["parameter-server", "all-reduce"]
"""The names in options of commands that start the workers themselves; an all-reduce is in formed groups."""

EXCHANGES = (PARAMETER_SERVER, FIXED_GROUP, FORMED_GROUP)


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in the process group of an attempt; the IDL's `Group`.

    Raises:
        ValueError: A rank is out of range.
    """

    rank: int  # this member's rank, from 0 to `size` - 1
    size: int  # number of members
    store: str  # address of the store at which they meet, as rank 0 has named it
    source: int | None = None  # the rank that sends its state to all; None where all have the same
    # True for a member that has to take that state, and has none to go on with until it has come.
    lacks: bool = False
    keep: bool = False  # True where nothing is trained, but rank 0 writes the state down
    manager: str | None = None  # id of the manager's process that has formed the group; None if not known

    def __post_init__(self) -> None:
        for name in ("rank", "source"):
            if (value := getattr(self, name)) is not None and not 0 <= value < self.size:
                raise ValueError(f"{name} {value}: must be from 0 to {self.size - 1}")
