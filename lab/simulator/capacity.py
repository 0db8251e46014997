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
    """The nodes that are there, over time.

    Raises:
        ValueError: There is no change at 0, times do not ascend up to the period, or no node is ever there.
    """

    # Times in seconds, ascending from 0, each with the nodes that are there from then on.
    changes: tuple[tuple[float, frozenset[str]], ...]
    period: float = math.inf  # seconds after which the changes repeat; inf for never

    def __post_init__(self) -> None:
        """Check the times."""
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

        Args:
            events: Times in seconds, in any order, each with a node's name and whether it joins.

        Raises:
            ValueError: A node joins that is there, is lost that is not, or none is ever there.
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

        Args:
            counts: Times in seconds, each with the number of nodes from then on; more than there are count
                as all.

        Raises:
            ValueError: A time comes twice, or no node is ever there.
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

        Args:
            between: Mean seconds that a node runs until it fails, exponentially distributed.
            repair: Seconds until it is back.
            seed: Of the draws.

        Raises:
            ValueError: A time is not above 0.
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
