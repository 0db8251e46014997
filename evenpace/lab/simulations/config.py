"""The configuration of a run of simulations: a value that checks itself."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

from idl.settings import Setting, check_settings
from scheduler.cluster import Cluster
from scheduler.policies import POLICIES
from scheduler.simulator.rules import RULES, Rules


class NodeGroup(NamedTuple):
    """A number of like nodes.

    Attributes:
        kind: The kind of their devices.
        nodes: How many they are.
        devices: Number of devices of each.
    """

    kind: str
    nodes: int
    devices: int

    def __str__(self) -> str:
        """Return the form that `parse_cluster` reads."""
        return f"{self.kind}={self.nodes}x{self.devices}"


def parse_cluster(text: str) -> tuple[NodeGroup, ...]:
    """Read groups of nodes such as `aws=6x4,rtx=3x8`, six nodes of four devices and three of eight.

    Raises:
        ValueError: It is of another form, a number is 0, or a kind comes twice.
    """
    groups = []
    for part in text.split(","):
        found = re.fullmatch(r"([A-Za-z0-9_.-]+)=([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", part)
        if not found:
            raise ValueError(
                f"cluster {text!r}: give KIND=NODESxDEVICES for each kind, as in aws=6x4,rtx=3x8"
            )
        groups.append(NodeGroup(found[1], int(found[2]), int(found[3])))
    kinds = [group.kind for group in groups]
    if len(set(kinds)) < len(kinds):
        raise ValueError(f"cluster {text!r}: a kind comes twice")
    return tuple(groups)


@dataclass(frozen=True)
class SimulationConfig:
    """Workloads to simulate under policies, on one cluster.

    Raises:
        ValueError: A value is not allowed.
    """

    workload: Annotated[
        tuple[Path, ...],
        Setting("CSV file of arrivals, or a folder of such files; may be repeated.", exists=True),
    ]
    policy: Annotated[tuple[str, ...], Setting("Policy; may be repeated.", choices=POLICIES)]
    traces: Annotated[
        tuple[Path, ...],
        Setting(
            "Folder of MODEL folders: placements-KIND.csv, scalability-KIND.csv (without -KIND for gpu), "
            "validation-M.csv. May be repeated; a model's files may lie in several.",
            folder=True,
            exists=True,
        ),
    ]
    cluster: Annotated[
        tuple[NodeGroup, ...],
        Setting(
            "Nodes, and devices of each, by kind.",
            metavar="KIND=NODESxDEVICES,...",
            read=parse_cluster,
        ),
    ] = (NodeGroup("gpu", 16, 4),)
    rules: Annotated[
        str, Setting("Published rules: models' limits, and what counts as a change.", choices=RULES)
    ] = "pollux"
    interval: Annotated[
        int | None, Setting("Seconds from round to round.  [default: the policy's]", least=1)
    ] = None
    restart_cost: Annotated[
        int | None,
        Setting("Seconds without progress after a changed placement.  [default: by the rules]", least=0),
    ] = None
    jobs: Annotated[int, Setting("Simulations at once, each in a process of its own.", least=1)] = 1

    def __post_init__(self) -> None:
        check_settings(self)
        for policy in self.policy:
            if len(self.cluster) > 1 and not POLICIES[policy].mixes:
                able = ", ".join(name for name, its in POLICIES.items() if its.mixes)
                raise ValueError(
                    f"policy {policy!r} takes all devices to be alike; for several kinds there are {able}"
                )

    def rules_for(self, policy: str) -> Rules:
        """Return interval and cost of a change under a policy."""
        interval = self.interval or POLICIES[policy].interval
        return replace(RULES[self.rules], interval=interval, restart_cost=self.restart_cost)

    @property
    def nodes(self) -> Cluster:
        """The cluster's nodes."""
        return Cluster.of(self.cluster)

    def conditions(self, policy: str) -> dict[str, str | int | None]:
        """Return the settings on which results depend, beside policy, arrivals and measurements."""
        return {
            "cluster": ",".join(map(str, self.cluster)),
            "rules": self.rules,
            "interval": self.interval or POLICIES[policy].interval,
            "restart_cost": self.restart_cost,
        }
