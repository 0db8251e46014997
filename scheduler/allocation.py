"""The devices that each job of a cluster has: a policy's result, for a simulator or executor to carry out."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from scheduler.nodes import Cluster

Placement: TypeAlias = tuple[tuple[str, int], ...]
"""The devices of one job: nodes by name, each once, with a number above 0; empty for a job that waits."""


def devices(placement: Placement) -> int:
    """Return the number of devices of a placement."""
    return sum(count for _, count in placement)


def shape(placement: Placement) -> tuple[int, ...]:
    """Return the number of devices on each of the nodes, in the placement's order."""
    return tuple(count for _, count in placement)


@dataclass(frozen=True)
class Allocation:
    """The placements of all jobs that have devices, by the jobs' names.

    Raises:
        ValueError: A placement names a node twice, or has no devices on one.
    """

    placements: Mapping[str, Placement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Drop the jobs without devices, and check the placements of the others."""
        kept = {job: placement for job, placement in self.placements.items() if placement}
        for job, placement in kept.items():
            if len(dict(placement)) < len(placement):
                raise ValueError(f"job {job!r} is placed twice on one node: {placement}")
            if any(count < 1 for _, count in placement):
                raise ValueError(f"job {job!r} has less than one device on a node: {placement}")
        object.__setattr__(self, "placements", MappingProxyType(kept))

    def __getitem__(self, job: str) -> Placement:
        """Return a job's placement, empty if it has no devices."""
        return self.placements.get(job, ())

    def used(self) -> Counter[str]:
        """Return the number of devices in use on each node."""
        used: Counter[str] = Counter()
        for placement in self.placements.values():
            used.update(dict(placement))
        return used

    def check(self, cluster: Cluster) -> None:
        """Check that a cluster has the devices.

        Raises:
            ValueError: A node does not exist, or has fewer devices than jobs were given.
        """
        for name, count in self.used().items():
            if (node := cluster.by_name.get(name)) is None:
                raise ValueError(f"there is no node {name!r} in the cluster")
            if count > node.devices:
                raise ValueError(f"{count} devices of node {name!r} were given away; it has {node.devices}")
