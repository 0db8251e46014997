"""The process group of an attempt, decided from what its members say when they call `rewind`.

Where the exchange is a group that the manager forms, `rewind` is a rendezvous: all members call it, and the
group follows from these calls alone. Knows no job: functions from values to values.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from idl.exchange import Seat

_STORE = re.compile(r"\S+:[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A member's call of `rewind` (ValueError: `store` is no address, or `formed` not an earlier attempt)."""

    attempt: int  # the attempt that it is ready for
    # The number of steps that its parameters have had, and so the iteration that they are ready for.
    steps: int
    # The attempt whose group it formed last with all of the state; None if it has no state.
    formed: int | None
    formed_by: str  # id of the manager's process that had that group formed
    store: str  # address of the store that the group meets at if this member has rank 0, as HOST:PORT
    at: float  # the time of the first such call in this attempt, in seconds
    # Epoch and first position of the batch of iteration `steps`; None if it does not say.
    place: tuple[int, int] | None = None
    kept: bool = False  # whether it has written this state down

    def __post_init__(self) -> None:
        if not _STORE.fullmatch(self.store) or not 1 <= int(self.store.rpartition(":")[2]) <= 65535:
            raise ValueError(f"store {self.store!r}: must be HOST:PORT of a store that this worker serves")
        if self.formed is not None and self.formed >= self.attempt:
            raise ValueError(f"formed {self.formed}: must be below attempt {self.attempt}, or left out")

    @property
    def version(self) -> tuple[int, int, str] | None:
        """The version of the member's state, which orders states; None if it has none.

        The attempt comes first: a step of an earlier attempt behind which the job has gone does not count.
        The manager's process comes last: attempts to which two of them gave one number have their own states.
        """
        return None if self.formed is None else (self.formed, self.steps, self.formed_by)


@dataclass(frozen=True, slots=True)
class Group:
    """The group of an attempt."""

    names: tuple[str, ...]  # its members' names; a member's rank is its index
    store: str  # address of rank 0's store
    iteration: int  # the first iteration of the attempt
    # Epoch and first position of that iteration's batch; None if nobody has said so.
    place: tuple[int, int] | None
    source: int | None  # the rank that gives its state to the others; None if all have the newest
    lacking: frozenset[str]  # the names of the members that do not have the newest state
    keep: bool = False  # whether it trains nothing, but has its state written down
    manager: str | None = None  # id of the manager's process that has it formed

    def seat(self, worker: str) -> Seat:
        """Return a member's place in the group."""
        rank = self.names.index(worker)
        lacks = worker in self.lacking
        return Seat(rank, len(self.names), self.store, self.source, lacks, self.keep, self.manager)


def newest(arrivals: Iterable[Arrival]) -> tuple[int, int, str] | None:
    """Return the newest version that any of these members has; None if none has any state."""
    return max((a.version for a in arrivals if a.version is not None), default=None)


def form_group(arrivals: Mapping[str, Arrival], first_iteration: int) -> Group:
    """Return the group of the members that have arrived.

    Args:
        arrivals: Their calls by name, in the order of their ranks; at least one.
        first_iteration: The iteration to begin with if none of them has any state. Then all take what the
            first one begins with.
    """
    names = tuple(arrivals)
    version = newest(arrivals.values())
    if version is None:
        having = names[:1]
        iteration, place = first_iteration, None
    else:
        having = tuple(name for name in names if arrivals[name].version == version)
        iteration = version[1]
        place = next((p for name in having if (p := arrivals[name].place) is not None), None)
    lacking = frozenset(names) - frozenset(having)
    source = names.index(having[0]) if lacking else None
    return Group(names, arrivals[names[0]].store, iteration, place, source, lacking)
