"""Devices of nodes, taken and released; as a rule, at most one job that spans nodes has a part on each.

This module must not know what jobs gain from devices. Jobs and nodes go by their numbers.
"""

from collections.abc import Sequence
from typing import TypeAlias

Parts: TypeAlias = tuple[tuple[int, int], ...]
"""Devices of one job: numbers of nodes, each once, with a number of devices above 0."""


class Occupancy:
    """The free devices of nodes."""

    def __init__(self, sizes: Sequence[int], most_nodes: int, *, avoid: bool = True) -> None:
        """Make nodes that are free.

        Args:
            sizes: Number of devices of each node, (nodes,).
            most_nodes: The most nodes that one job may span.
            avoid: Let at most one job that spans nodes have a part on each node.
        """
        self.sizes = sizes  # number of devices of each node, (nodes,)
        self.free = list(sizes)  # free devices of each node, (nodes,)
        # The jobs that have devices on each node, with their number; (nodes,).
        self.jobs: list[dict[int, int]] = [{} for _ in sizes]
        self._most_nodes = most_nodes
        self._avoid = avoid
        self._spanned = [False for _ in sizes]
        # Nodes by the number of their free devices, without and with a part of a job that spans nodes.
        self._single, self._shared = ([set[int]() for _ in range(max(sizes) + 1)] for _ in range(2))
        for node, size in enumerate(sizes):
            self._single[size].add(node)

    def most_within(self) -> int:
        """Return the most devices that are free on one node."""
        numbers = range(len(self._single) - 1, 0, -1)
        return next((free for free in numbers if self._single[free] or self._shared[free]), 0)

    def most_across(self) -> int:
        """Return the most free devices on nodes that one job may span."""
        nodes, most = self._most_nodes, 0
        for free in range(len(self._single) - 1, 0, -1):
            taken = min(nodes, len(self._single[free]))
            nodes -= taken
            most += taken * free
        return most

    def find_within(self, number: int) -> Parts:
        """Find devices on the node where the fewest others stay free; at least 1, at most `most_within`."""
        # A node with a part of a job that spans nodes is of less use to others, so it goes first.
        free = next(
            free for free in range(number, len(self._single)) if self._shared[free] or self._single[free]
        )
        return ((min(self._shared[free] or self._single[free]), number),)

    def find_across(self, number: int) -> Parts:
        """Find devices on as few nodes as possible, of which the last is the one where the fewest stay free.

        Args:
            number: Devices, at least 1, at most `most_across`.

        Raises:
            ValueError: Fewer are free.
        """
        parts: Parts = ()
        for free in range(len(self._single) - 1, 0, -1):
            for node in sorted(self._single[free]):
                if number <= free:
                    fitting = next(least for least in range(number, free + 1) if self._single[least])
                    return *parts, (node if fitting == free else min(self._single[fitting]), number)
                parts += ((node, free),)
                number -= free
        raise ValueError(f"{number} devices more are needed than are free on nodes that one job may span")

    def excludes(self, parts: Parts) -> bool:
        """Return whether a job with these devices keeps others like it off their nodes."""
        return self._avoid and len(parts) > 1

    def fits(self, parts: Parts) -> bool:
        """Return whether devices are free, with no other job that spans nodes beside if these do."""
        return all(self.free[node] >= count for node, count in parts) and not (
            self.excludes(parts) and any(self._spanned[node] for node, _ in parts)
        )

    def take(self, job: int, parts: Parts) -> None:
        """Give devices that fit to a job."""
        for node, count in parts:
            self.jobs[node][job] = count
            self._move(node, self.free[node] - count, self._spanned[node] or self.excludes(parts))

    def release(self, job: int, parts: Parts) -> None:
        """Take back a job's devices."""
        for node, count in parts:
            del self.jobs[node][job]
            self._move(node, self.free[node] + count, self._spanned[node] and not self.excludes(parts))

    def _move(self, node: int, free: int, spanned: bool) -> None:
        (self._shared if self._spanned[node] else self._single)[self.free[node]].discard(node)
        self.free[node], self._spanned[node] = free, spanned
        (self._shared if spanned else self._single)[free].add(node)
