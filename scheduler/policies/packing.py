"""Placement of jobs on as few nodes as their free devices allow, for policies that choose numbers only."""

from collections.abc import Mapping

from scheduler.allocation import Allocation, Placement
from scheduler.nodes import Cluster


def free_devices(cluster: Cluster, kept: Mapping[str, Placement]) -> dict[str, int]:
    """Return the devices of each node that placements leave free, in the cluster's order."""
    used = Allocation(kept).used()
    return {node.name: node.devices - used[node.name] for node in cluster.nodes}


def take(number: int, free: dict[str, int]) -> Placement:
    """Take devices from the node with the most free ones, then from the next, until there are enough.

    Args:
        number: Devices to take.
        free: Free devices by node, less those taken when this returns; of equal nodes the first is taken.

    Raises:
        ValueError: Fewer are free.
    """
    if number > sum(free.values()):
        raise ValueError(f"{number} devices are needed; {sum(free.values())} are free")
    placement = []
    while number:
        node = max(free, key=free.__getitem__)
        taken = min(free[node], number)
        placement.append((node, taken))
        free[node] -= taken
        number -= taken
    return tuple(placement)
