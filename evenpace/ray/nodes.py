"""The nodes that are about to go. Ray has no public call for it: this module alone knows one."""

from ray._private.state import state


def draining_nodes() -> dict[str, float]:
    """Return the nodes that are about to go, by Ray's id: when, in seconds since 1970; 0 where nobody said.

    Ray knows it of spot notices, of an autoscaler that shrinks the cluster, and by `ray drain-node`.
    """
    nodes: dict[str, int] = state.get_draining_nodes()
    return {node: milliseconds / 1000 for node, milliseconds in nodes.items()}
