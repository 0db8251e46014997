"""Schedule of faults: a function of the seed alone. It knows no process, connection or clock."""

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, Literal

from idl.exchange import ExchangeName

MANAGER = "manager"  # name of the manager's process
Site = Literal["process", "guest", "link", "ranks", "disk", "writes", "clock", "operator"]
"""What a fault befalls."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    site: Site  # site that it befalls
    weight: float  # frequency, relative to the other kinds
    # Least and longest duration; of a kill or a drain, until the supervisor starts the process again.
    seconds: tuple[float, float]
    meaning: str  # description, in words
    of_all_scales: bool = False  # true if 1 to 10 seconds are as likely as 10 to 100
    only_with: ExchangeName | None = None  # the only exchange with which it comes; None for all
    roles: tuple[str, ...] | None = None  # roles of the processes that it befalls; None for all


_harm = partial(Kind, "process", 1.5, (0.2, 4.0))  # to what a service keeps on disk, with its SIGKILL
_refused = partial(Kind, "process", 1.5, (0.0, 0.0))
_OF_SHARDS: dict[str, Any] = {"only_with": "parameter-server", "roles": ("shard",)}
KINDS = {
    "kill": Kind("process", 10, (0.2, 4.0), "SIGKILL, and started again"),
    "freeze": Kind("process", 6, (0.5, 5.0), "SIGSTOP, then SIGCONT"),
    "long-freeze": Kind("process", 1.5, (15.0, 30.0), "SIGSTOP, then SIGCONT"),
    "freeze-until-out": Kind(
        "process", 1.5, (0.0, 20.0), "SIGSTOP, until others got a worker's part; then SIGCONT"
    ),
    "bit-flip": _harm("a bit of a shard's newest checkpoint flips, then SIGKILL", **_OF_SHARDS),
    "lost-file": _harm("a shard's newest checkpoint is gone, then SIGKILL", **_OF_SHARDS),
    "state-bit-flip": _harm(
        "SIGKILL of the manager, then a bit of what it has saved of a job or member flips", roles=("manager",)
    ),
    "impostor": _refused("another process with a name or state that is in use"),
    "foreign-state": _refused(
        "a shard or manager is given the folder of another service",
        only_with="parameter-server",
        roles=("shard", "manager"),
    ),
    "cut": Kind("link", 3, (0.0, 0.5), "connections reset, maybe within a message; new ones refused"),
    "stall": Kind("link", 3, (0.5, 12.0), "no byte passes, and nothing is closed"),
    "throttle": Kind("link", 2, (2.0, 10.0), "few bytes pass each second"),
    "half-open": Kind("link", 2, (0.5, 15.0), "one side's connections end, and the other is not told"),
    "black-hole": Kind(
        "link", 1, (1.0, 300.0), "nothing answered or closed, by a link or a whole service", True
    ),
    "partition": Kind("link", 1, (1.0, 60.0), "likewise or stalled, from workers to manager or shards", True),
    "disk": Kind("disk", 2, (2.0, 10.0), "no space left where state is kept"),
    "failing-writes": Kind("writes", 2, (2.0, 10.0), "writes and fsync of state fail with EIO"),
    "clock": Kind("clock", 2, (3.0, 10.0), "the wall clock jumps, and jumps back"),
    "batch-size": Kind("operator", 2, (0.0, 0.0), "an operator changes the size of the whole batch"),
    "bounds": Kind("operator", 2, (1.0, 10.0), "an operator bounds a worker's batch size, and lifts it"),
    "join": Kind("guest", 2, (5.0, 40.0), "a worker more joins, and leaves later", only_with="all-reduce"),
    "drain": Kind("process", 2, (0.2, 8.0), "a worker is drained, and comes back", only_with="all-reduce"),
    "rank-black-hole": Kind(
        "ranks", 1, (1.0, 60.0), "no packet passes between two workers", True, only_with="all-reduce"
    ),
    "rank-partition": Kind(
        "ranks", 1, (1.0, 60.0), "none passes between some and the others", True, only_with="all-reduce"
    ),
}


def kinds_with(exchange: ExchangeName) -> list[str]:
    """Return the names of the kinds that come with an exchange."""
    return [name for name, kind in KINDS.items() if kind.only_with in (None, exchange)]


_BURST = 0.12  # share of the moments at which several faults come at once
_MASSACRE = 0.03  # share of the moments at which all processes of one role are killed
_ROLES = {"worker": 2.0, "shard": 1.0, "manager": 1.0}  # relative frequency of each role as a target
_SERVICE = 0.25  # share of black holes that swallow all links of a service
_SECOND = 0.5  # share of freezes until a worker is out during which another worker is frozen
_SECOND_SECONDS = 12.0  # seconds after which the other one is frozen, at most
_SIDES = 4  # pairs of sides, and sets of workers that lose a service, that are tried
LONGEST = 1 / 8  # share of a run that a fault lasts, at most: a short run has to make progress, too
_JUMPS = (-86_400.0, -3600.0, -30.0, 30.0, 3600.0, 864_000.0)  # seconds


@dataclass(frozen=True)
class Fault:
    """One fault to come."""

    number: int  # number of the fault, from 0
    at: float  # seconds since the faults began
    kind: str  # a name in `KINDS`
    # In the order in which they are tried, until one can be befallen. Several links may be one target, as
    # `links_of` has it; two sides of workers are, as `sides_of` has it; and of a foreign state "ps-0>ps-1", a
    # service and the one whose folder it is given.
    targets: tuple[str, ...]
    seconds: float  # duration
    amount: float = 0.0  # what else the kind needs: a clock's jump in seconds; from 0 to 1 for others


@dataclass(frozen=True)
class Sites:
    """Names of everything that faults may befall, by site."""

    processes: dict[str, tuple[str, ...]]  # by role: "worker", "shard", "manager"
    links: tuple[str, ...]
    disks: tuple[str, ...]
    guests: tuple[str, ...] = ()  # workers that are there now and then
    writes: tuple[str, ...] = ()  # services whose writes can fail


def schedule(
    seed: int, kinds: Sequence[str], sites: Sites, gap: float, seconds: float = float("inf")
) -> Iterator[Fault]:
    """Draw faults, and yield them in the order of their times; one of each kind is in the first half.

    They come within so many seconds, and `gap` is the mean of the seconds between two moments of faults.
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
    for number, fault in enumerate(_with_seconds(random.Random(f"seconds, {seed}"), faults)):
        low, _ = KINDS[fault.kind].seconds
        yield replace(fault, number=number, seconds=min(fault.seconds, max(low, LONGEST * seconds)))


def links_of(name: str) -> list[str]:
    """Return the links of a target: "w0,w1>ps-0" has "w0>ps-0" and "w1>ps-0"."""
    workers, _, services = name.partition(">")
    return [f"{worker}>{service}" for worker in workers.split(",") for service in services.split(",")]


def sides_of(name: str) -> tuple[list[str], list[str]]:
    """Return the two sides of workers in a target: "w0|w1,w2" has ["w0"] and ["w1", "w2"]."""
    one, _, other = name.partition("|")
    return one.split(","), other.split(",")


def touched(kind: str, name: str) -> set[tuple[str, str]]:
    """Return (site, name) of all that other faults must leave alone while one of a kind befalls a target.

    An impostor's include the manager, which has to refuse it, and those of a service with a foreign state the
    state's owner, which would leave its folder to it by its end.
    """
    site = str(KINDS[kind].site)
    if kind == "foreign-state":
        return {(site, part) for part in name.split(">")}
    if site == "ranks":
        return {(site, part) for part in itertools.chain(*sides_of(name))}
    result = {(site, part) for part in (links_of(name) if site == "link" else [name])}
    if (site, name) == ("writes", MANAGER):
        result.add(("process", name))
    if kind == "state-bit-flip":  # which needs the disk, as the manager's next start does
        result |= {("disk", name), ("writes", name)}
    if kind == "impostor" and name != MANAGER:
        result |= {(site, MANAGER), ("link", f"{name}>{MANAGER}")}
    return result


def _with_seconds(draw: random.Random, faults: Iterable[Fault]) -> Iterator[Fault]:
    """Add faults by which two workers are out in overlapping intervals, now and then."""
    later: list[tuple[float, Fault]] = []
    for fault in faults:
        while later and later[0][0] <= fault.at:
            yield later.pop(0)[1]
        yield fault
        if fault.kind == "freeze-until-out" and draw.random() < _SECOND:
            at = fault.at + draw.uniform(0, _SECOND_SECONDS)
            targets = tuple(draw.sample(fault.targets, len(fault.targets)))
            later = sorted([*later, (at, replace(fault, at=at, targets=targets))], key=itemgetter(0))
    yield from (fault for _, fault in later)


def _one_of_each(draw: random.Random, kinds: Sequence[str], sites: Sites, gap: float) -> Iterator[Fault]:
    """Yield one fault of each kind, `gap` seconds apart."""
    for number, kind in enumerate(draw.sample(kinds, len(kinds)), 1):
        if names := _names(draw, kind, sites):
            yield _fault(draw, gap * number, kind, names)


def _by_chance(
    draw: random.Random, kinds: Sequence[str], sites: Sites, gap: float, seconds: float
) -> Iterator[Fault]:
    at = 0.0
    while (at := at + draw.expovariate(1 / gap)) < seconds:
        for kind, targets in _moment(draw, kinds, sites):
            yield _fault(draw, at, kind, targets)


def _fault(draw: random.Random, at: float, kind: str, targets: tuple[str, ...]) -> Fault:
    """Draw a fault's duration and amount; its number is not known yet."""
    low, high = KINDS[kind].seconds
    seconds = low * (high / low) ** draw.random() if KINDS[kind].of_all_scales else draw.uniform(low, high)
    amount = draw.choice(_JUMPS) if KINDS[kind].site == "clock" else draw.random()
    return Fault(0, at, kind, targets, seconds, amount)


def _moment(draw: random.Random, kinds: Sequence[str], sites: Sites) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield kind and targets of the faults that come at one moment."""
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
    """Return the targets of a fault, in a random order."""
    site = KINDS[kind].site
    workers = sites.processes.get("worker", ())
    simple = {"disk": sites.disks, "guest": sites.guests, "writes": sites.writes, "operator": workers}
    if site in simple:
        return tuple(draw.sample(simple[site], len(simple[site])))
    if site == "ranks":
        return tuple(_sides(draw, (*workers, *sites.guests), kind))
    if site == "link":
        names = sites.links
        if kind == "partition":
            names = tuple(_partitions(draw, names))
        elif kind == "black-hole" and draw.random() < _SERVICE:
            ends, services = _ends(names)
            names = tuple(f"{','.join(ends)}>{service}" for service in services)
        return tuple(draw.sample(names, len(names)))
    if kind == "foreign-state":
        services = [name for role in ("manager", "shard") for name in sites.processes.get(role, ())]
        pairs = [f"{one}>{other}" for one, other in itertools.permutations(services, 2)]
        return tuple(draw.sample(pairs, len(pairs)))
    # By role first: the manager is one process, the workers are many.
    roles = sorted(sites.processes, key=lambda role: draw.random() / _ROLES[role])
    if (allowed := KINDS[kind].roles) is not None:
        roles = [role for role in roles if role in allowed]
    if kind in ("freeze-until-out", "drain"):  # by others, of which there must be one
        roles = ["worker"] if len(workers) > 1 else []
    by_role = sites.processes | {"worker": (*workers, *sites.guests)}
    return tuple(name for role in roles for name in draw.sample(by_role[role], len(by_role[role])))


def _sides(draw: random.Random, workers: Sequence[str], kind: str) -> Iterator[str]:
    """Yield two sides of workers, several times: one and another, or some and all others."""
    for _ in range(_SIDES if len(workers) > 1 else 0):
        drawn = draw.sample(workers, 2 if kind == "rank-black-hole" else len(workers))
        first = draw.randint(1, len(drawn) - 1)
        yield f"{','.join(drawn[:first])}|{','.join(drawn[first:])}"


def _partitions(draw: random.Random, links: Sequence[str]) -> Iterator[str]:
    """Yield links by which some workers lose the manager alone, and some lose all shards alone.

    There are several of each, since a job may have to keep one of the workers that are drawn.
    """
    workers, services = _ends(links)
    for others in (
        [name for name in services if name == MANAGER],
        [name for name in services if name != MANAGER],
    ):
        for _ in range(_SIDES if others else 0):
            some = sorted(draw.sample(workers, draw.randint(1, len(workers))), key=workers.index)
            yield f"{','.join(some)}>{','.join(others)}"


def _ends(links: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the workers and the services that links connect."""
    return (
        list(dict.fromkeys(link.partition(">")[0] for link in links)),
        list(dict.fromkeys(link.partition(">")[2] for link in links)),
    )
