"""Which faults come when: a function of the seed alone. It knows no process, connection or clock."""

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Site = Literal["process", "link", "disk", "clock"]  # what a fault befalls


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        site: What it befalls.
        weight: How often it comes, relative to the others.
        seconds: For which it lasts, from and to; of a kill, until a supervisor starts the process again.
        meaning: In words.
    """

    site: Site
    weight: float
    seconds: tuple[float, float]
    meaning: str


KINDS = {
    "kill": Kind("process", 10, (0.2, 4.0), "SIGKILL, and started again"),
    "freeze": Kind("process", 6, (0.5, 5.0), "SIGSTOP, then SIGCONT"),
    "long-freeze": Kind("process", 1.5, (15.0, 30.0), "SIGSTOP, then SIGCONT"),
    "cut": Kind("link", 3, (0.0, 0.5), "connections reset, maybe within a message; new ones refused"),
    "stall": Kind("link", 3, (0.5, 12.0), "no byte passes, and nothing is closed"),
    "throttle": Kind("link", 2, (2.0, 10.0), "few bytes pass each second"),
    "half-open": Kind("link", 2, (0.5, 15.0), "one side's connections end, and the other is not told"),
    "disk": Kind("disk", 2, (2.0, 10.0), "no space left where state is kept"),
    "clock": Kind("clock", 2, (3.0, 10.0), "the wall clock jumps, and jumps back"),
}
_BURST = 0.12  # of the moments at which a fault comes, several come at once
_MASSACRE = 0.03  # and all processes of one role are killed
_ROLES = {"worker": 2.0, "shard": 1.0, "manager": 1.0}  # how often it is one of them
_JUMPS = (-86_400.0, -3600.0, -30.0, 30.0, 3600.0, 864_000.0)  # seconds


@dataclass(frozen=True)
class Fault:
    """One fault to come.

    Attributes:
        number: Counted from 0.
        at: Seconds since the faults began.
        kind: A name in `KINDS`.
        targets: In the order in which they are tried; the first that can be befallen then, is.
        seconds: For which it lasts.
        amount: What else the kind needs: a clock's jump in seconds; from 0 to 1 for a link.
    """

    number: int
    at: float
    kind: str
    targets: tuple[str, ...]
    seconds: float
    amount: float = 0.0


@dataclass(frozen=True)
class Sites:
    """What there is for faults to befall, by name."""

    processes: dict[str, tuple[str, ...]]  # by role: "worker", "shard", "manager"
    links: tuple[str, ...]
    disks: tuple[str, ...]


def schedule(
    seed: int, kinds: Sequence[str], sites: Sites, gap: float, seconds: float = float("inf")
) -> Iterator[Fault]:
    """The faults, in the order of their times: some by chance, and of each kind one in the first half.

    Args:
        seed: The same gives the same faults.
        kinds: Names in `KINDS` that may come.
        sites: What they may befall.
        gap: Seconds between two moments at which faults come, on average.
        seconds: Until the last.

    Raises:
        ValueError: No kind is given, or one that does not exist; or the gap is not above 0.
    """
    if not kinds or (unknown := set(kinds) - set(KINDS)):
        raise ValueError(f"faults {', '.join(sorted(unknown)) if kinds else '(none)'}: {', '.join(KINDS)}")
    if not gap > 0:
        raise ValueError(f"gap {gap}: must be above 0 s")
    faults = heapq.merge(
        _one_of_each(random.Random(f"one of each, {seed}"), kinds, sites, min(gap, seconds / 2 / len(kinds))),
        _by_chance(random.Random(seed), kinds, sites, gap, seconds),
        key=lambda fault: fault.at,
    )
    for number, fault in enumerate(faults):
        yield replace(fault, number=number)


def _one_of_each(draw: random.Random, kinds: Sequence[str], sites: Sites, gap: float) -> Iterator[Fault]:
    """One fault of each kind, so many seconds apart."""
    for number, kind in enumerate(draw.sample(kinds, len(kinds)), 1):
        if names := _names(draw, kind, sites):
            yield _fault(draw, gap * number, kind, names)


def _by_chance(
    draw: random.Random, kinds: Sequence[str], sites: Sites, gap: float, seconds: float
) -> Iterator[Fault]:
    """Faults until the last second."""
    at = 0.0
    while (at := at + draw.expovariate(1 / gap)) < seconds:
        for kind, targets in _moment(draw, kinds, sites):
            yield _fault(draw, at, kind, targets)


def _fault(draw: random.Random, at: float, kind: str, targets: tuple[str, ...]) -> Fault:
    """A fault whose number is not known yet."""
    low, high = KINDS[kind].seconds
    amount = draw.choice(_JUMPS) if KINDS[kind].site == "clock" else draw.random()
    return Fault(0, at, kind, targets, draw.uniform(low, high), amount)


def _moment(draw: random.Random, kinds: Sequence[str], sites: Sites) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Kind and targets of the faults that come at one moment."""
    luck = draw.random()
    if "kill" in kinds and luck < _MASSACRE:
        role = draw.choice(sorted(sites.processes))
        yield from (("kill", (name,)) for name in sites.processes[role])
        return
    for _ in range(draw.randint(2, 4) if luck < _MASSACRE + _BURST else 1):
        possible = [kind for kind in kinds if _names(draw, kind, sites)]
        if possible:
            kind = draw.choices(possible, [KINDS[kind].weight for kind in possible])[0]
            yield kind, _names(draw, kind, sites)


def _names(draw: random.Random, kind: str, sites: Sites) -> tuple[str, ...]:
    """Where a fault may come, in an order by chance."""
    site = KINDS[kind].site
    if site in ("link", "disk"):
        names = sites.links if site == "link" else sites.disks
        return tuple(draw.sample(names, len(names)))
    # By role first: the manager is one process, the workers are many.
    roles = sorted(sites.processes, key=lambda role: draw.random() / _ROLES[role])
    return tuple(
        name for role in roles for name in draw.sample(sites.processes[role], len(sites.processes[role]))
    )
