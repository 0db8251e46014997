"""The cluster as a scheduler sees it: nodes of devices, each node's all of one kind."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster."""

    name: str  # unlike any other node's
    kind: str  # its devices' kind, such as a GPU's name
    devices: int  # number of its devices, at least 1

    def __post_init__(self) -> None:
        """Check the number of devices (ValueError: it is below 1)."""
        if self.devices < 1:
            raise ValueError(f"node {self.name!r} has {self.devices} devices; at least 1 is needed")


@dataclass(frozen=True)
class Cluster:
    """The nodes that jobs share, in the order in which policies go through them.

    Raises:
        ValueError: Two nodes have one name.
    """

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        """Check that names differ."""
        if len(self.by_name) < len(self.nodes):
            names = [node.name for node in self.nodes]
            raise ValueError(
                f"two nodes are called {next(name for name in names if names.count(name) > 1)!r}"
            )

    @classmethod
    def of(cls, groups: Iterable[tuple[str, int, int]]) -> "Cluster":
        """Return a cluster of groups of like nodes, named by kind and number.

        Args:
            groups: For each group the kind, the number of nodes and the number of devices of each.

        Raises:
            ValueError: A node would have no device, or two groups are of one kind.
        """
        return cls(
            tuple(Node(f"{kind}-{i}", kind, size) for kind, number, size in groups for i in range(number))
        )

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """The nodes by their names."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def devices(self) -> int:
        """Number of devices of all nodes."""
        return sum(node.devices for node in self.nodes)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of devices, each once, in the order of the nodes."""
        return tuple(dict.fromkeys(node.kind for node in self.nodes))

    @cached_property
    def devices_by_kind(self) -> dict[str, int]:
        """Number of devices of each kind, in the order of the nodes."""
        return {kind: sum(node.devices for node in self.nodes if node.kind == kind) for kind in self.kinds}

    @cached_property
    def node_sizes(self) -> dict[str, int]:
        """Number of devices of the largest node of each kind, in the order of the nodes."""
        return {kind: max(node.devices for node in self.nodes if node.kind == kind) for kind in self.kinds}
