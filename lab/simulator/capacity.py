"""Nodes that come and go while jobs run: spot markets, failures. Pure values of names and times."""

import bisect
import itertools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

_YEAR = 365.0 * 86_400  # seconds, after which drawn failures repeat


@dataclass(frozen=True)
class Capacity:
    """The nodes that are there, over time (ValueError: times do not ascend from 0, or no node is there)."""

    # Times in seconds, ascending from 0, each with the nodes that are there from then on.
    changes: tuple[tuple[float, frozenset[str]], ...]
    period: float = math.inf  # seconds after which the changes repeat; inf for never

    def __post_init__(self) -> None:
        times = [*self._times, self.period]
        if not times[0] == 0 < self.period:
            raise ValueError(f"the first change is at {times[0]:g} s: it must be at 0 s")
        for before, after in itertools.pairwise(times):
            if not before < after:
                raise ValueError(f"a change at {after:g} s follows one at {before:g} s: times must ascend")
        if not any(nodes for _, nodes in self.changes):
            raise ValueError("no node is ever there")

    @classmethod
    def of_events(cls, events: Iterable[tuple[float, str, bool]]) -> "Capacity":
        """Return the capacity that events make, which repeat after the last one.

        An event has its time in seconds, in any order, a node's name, and whether it joins (ValueError: one
        joins that is there, or is lost that is not).
        """
        present: set[str] = set()
        changes: dict[float, frozenset[str]] = {0.0: frozenset()}
        for time, node, joins in sorted(events, key=lambda event: event[0]):
            if joins == (node in present):
                raise ValueError(
                    f"node {node!r} {'joins' if joins else 'is lost'} at {time:g} s, where it is "
                    f"{'there' if joins else 'gone'} already"
                )
            (present.add if joins else present.remove)(node)
            changes[time] = frozenset(present)
        return cls._repeating(changes)

    @classmethod
    def of_counts(cls, counts: Iterable[tuple[float, int]], nodes: Sequence[str]) -> "Capacity":
        """Return the capacity by numbers of nodes, of which the first are there; it repeats at the end.

        Each number holds from its time, in seconds; more than there are count as all.
        """
        changes: dict[float, frozenset[str]] = {}
        for time, count in sorted(counts):
            if time in changes:
                raise ValueError(f"two numbers of nodes at {time:g} s")
            changes[time] = frozenset(nodes[:count])
        return cls._repeating({0.0: frozenset()} | changes)

    @classmethod
    def of_failures(cls, nodes: Sequence[str], between: float, repair: float, seed: int) -> "Capacity":
        """Return nodes that fail at random and come back; the draws of a year repeat.

        A node runs until it fails for exponentially distributed seconds with the mean `between`, and is back
        after `repair` seconds.
        """
        for name, seconds in (("mean time between failures", between), ("time to repair", repair)):
            if not 0 < seconds < math.inf:
                raise ValueError(f"{name} {seconds:g} s: must be above 0")
        draws = random.Random(seed)
        events = []
        for node in nodes:
            time = 0.0
            while time < _YEAR:
                events.append((time, node, True))
                time += draws.expovariate(1 / between)
                events.append((time, node, False))
                time += repair
        return cls.of_events(event for event in events if event[0] < _YEAR)

    @classmethod
    def _repeating(cls, changes: dict[float, frozenset[str]]) -> "Capacity":
        times = sorted(changes)
        if len(times) == 1:
            return cls(tuple(changes.items()))
        return cls(tuple((time, changes[time]) for time in times[:-1]), times[-1])

    @cached_property
    def _times(self) -> list[float]:
        return [time for time, _ in self.changes]

    def at(self, now: float) -> frozenset[str]:
        """Return the names of the nodes that are there."""
        return self.changes[bisect.bisect_right(self._times, now % self.period) - 1][1]

    def lost(self, begin: float, end: float) -> dict[str, float]:
        """Return the nodes that are there at `begin` and are lost up to `end`, each with the time of that."""
        lost: dict[str, float] = {}
        present = self.at(begin)
        time = begin
        while len(lost) < len(present):
            number = bisect.bisect_right(self._times, time % self.period)
            next_time = self._times[number] if number < len(self._times) else self.period
            time += next_time - time % self.period
            if not time <= end:
                break
            for node in present - self.at(time) - lost.keys():
                lost[node] = time
        return lost
