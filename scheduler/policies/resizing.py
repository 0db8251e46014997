"""Placement of jobs whose numbers of devices change while they go on where they are."""

from collections.abc import Mapping

from scheduler.allocation import Allocation, Placement, devices
from scheduler.nodes import Cluster
from scheduler.policies.packing import free_devices, take


def resize(numbers: Mapping[str, int], before: Allocation, cluster: Cluster) -> Allocation:
    """Return placements that have certain numbers of devices, and as many of those before as possible.

    A job gives up its devices on the node where it has the fewest, so that it is on few nodes; it grows on
    the nodes that it has, then on those with the most free devices.

    Args:
        numbers: Devices by job, from 0; the jobs take free devices in this order.
        before: Placements of these jobs, and of no others that stay.
        cluster: The nodes.

    Raises:
        ValueError: There are fewer devices.
    """
    placed = {name: _shrunk(before[name], number) for name, number in numbers.items()}
    free = free_devices(cluster, placed)
    for name, number in numbers.items():
        missing = number - devices(placed[name])
        own = {node: free[node] for node, _ in placed[name]}
        grown = take(min(missing, sum(own.values())), own)
        free.update(own)
        placed[name] = _joined(placed[name], (*grown, *take(missing - devices(grown), free)))
    return Allocation(placed)


def _shrunk(placement: Placement, number: int) -> Placement:
    """Return what is left of a placement when a job has at most so many devices."""
    left = dict(placement)
    excess = devices(placement) - number
    for node, count in sorted(placement, key=lambda part: part[1]):
        given = min(max(excess, 0), count)
        left[node] -= given
        excess -= given
    return tuple((node, count) for node, count in left.items() if count)


def _joined(placement: Placement, more: Placement) -> Placement:
    joined = dict(placement)
    for node, count in more:
        joined[node] = joined.get(node, 0) + count
    return tuple(joined.items())
