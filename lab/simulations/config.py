"""The configuration of a run of simulations: a value that checks itself."""

import hashlib
import math
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, NamedTuple

from idl.settings import Setting, check_settings
from lab.simulations.capacity_files import read_capacity
from lab.simulator.capacity import Capacity
from lab.simulator.rules import RULES, Rules
from scheduler.nodes import Cluster
from scheduler.policies import POLICIES
from scheduler.policies.base import Policy
from scheduler.policies.pollux import Pollux


class NodeGroup(NamedTuple):
    """A number of like nodes."""

    kind: str  # the kind of their devices
    nodes: int  # how many they are
    devices: int  # number of devices of each

    def __str__(self) -> str:
        """Return the form that `parse_cluster` reads."""
        return f"{self.kind}={self.nodes}x{self.devices}"


def parse_cluster(text: str) -> tuple[NodeGroup, ...]:
    """Read groups of nodes such as `aws=6x4,rtx=3x8`, six nodes of four devices and three of eight."""
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


_PUBLISHED = ("cluster", "rules", "interval", "restart_cost")
"""Settings on which results depend, and which published simulations have, too."""

_APART = ("workload", "policy", "traces", "jobs")
"""What results are of, beside the settings on which they depend, and how many are made at once."""


@dataclass(frozen=True)
class SimulationConfig:
    """Workloads to simulate under policies, on one cluster."""

    workload: Annotated[
        tuple[Path, ...], Setting("CSV file of arrivals, or a folder of such files; may be repeated.")
    ]
    policy: Annotated[tuple[str, ...], Setting("Policy; may be repeated.", choices=POLICIES)]
    traces: Annotated[
        tuple[Path, ...],
        Setting(
            "Folder of MODEL folders: placements-KIND.csv, scalability-KIND.csv (without -KIND for gpu), "
            "validation-M.csv. May be repeated; a model's files may lie in several.",
            folder=True,
        ),
    ]
    cluster: Annotated[
        tuple[NodeGroup, ...],
        Setting("Nodes, and devices of each, by kind.", metavar="KIND=NODESxDEVICES,...", read=parse_cluster),
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
    interference: Annotated[
        float,
        Setting(
            "Share of the progress lost by jobs that span nodes and share one of them.", least=0, below=1
        ),
    ] = 0.0
    power: Annotated[
        float,
        Setting(
            "Exponent of pollux's mean of speedups; the smaller, the fairer.", above=-math.inf, below=math.inf
        ),
    ] = -1.0
    share_nodes: Annotated[
        bool, Setting("Let pollux place parts of several jobs that span nodes on one node.")
    ] = False
    profiled: Annotated[
        bool, Setting("Let jobs know all measured step times, and their first noise, from the start.")
    ] = False
    capacity: Annotated[
        Path | None,
        Setting(
            "CSV file of the nodes that are there, time_s,event,node or time_s,nodes, repeated at its end.",
            exists=True,
            folder=False,
        ),
    ] = None
    failures: Annotated[
        float | None,
        Setting("Mean hours until a node fails, at random, instead of --capacity.", above=0, below=math.inf),
    ] = None
    repair: Annotated[int, Setting("Seconds until a node that failed is back.", least=1)] = 600
    seed: Annotated[int, Setting("Seed of the failures.", least=0)] = 1
    notice: Annotated[int, Setting("Seconds from a warning of a node's loss to the loss.", least=0)] = (
        Rules.notice
    )
    checkpoint: Annotated[
        int,
        Setting(
            "Seconds of training between checkpoints; after a node's loss, training since the last one is "
            "repeated. With 0, nothing is.",
            least=0,
        ),
    ] = Rules.checkpoint
    jobs: Annotated[int, Setting("Simulations at once, each in a process of its own.", least=1)] = 1

    def __post_init__(self) -> None:
        check_settings(self)
        if self.capacity is not None and self.failures is not None:
            raise ValueError("capacity and failures: one of them says when nodes are there")
        for policy in self.policy:
            if len(self.cluster) > 1 and not POLICIES[policy].mixes:
                able = ", ".join(name for name, its in POLICIES.items() if its.mixes)
                raise ValueError(
                    f"policy {policy!r} takes all devices to be alike; for several kinds there are {able}"
                )

    def rules_for(self, policy: str) -> Rules:
        """Return interval, costs of changes and losses, and interference under a policy."""
        return replace(
            RULES[self.rules],
            interval=self.interval or POLICIES[policy].interval,
            restart_cost=self.restart_cost,
            checkpoint=self.checkpoint,
            notice=self.notice,
            interference=self.interference,
            profiled=self.profiled,
        )

    def make_policy(self, name: str) -> Policy:
        """Return a new policy of this name, for one simulation."""
        if name == "pollux":
            return Pollux(self.power, avoid=not self.share_nodes)
        return POLICIES[name]()

    def read_capacity(self) -> Capacity | None:
        """Return the nodes that are there, over time; None for all, always."""
        names = [node.name for node in self.nodes.nodes]
        if self.failures is not None:
            return Capacity.of_failures(names, self.failures * 3600, self.repair, self.seed)
        return None if self.capacity is None else read_capacity(self.capacity, names)

    @property
    def nodes(self) -> Cluster:
        """The cluster's nodes."""
        return Cluster.of(self.cluster)

    def conditions(self, policy: str) -> dict[str, int | float | str | None]:
        """Return the settings on which results depend, beside policy, arrivals and measurements.

        Those that published simulations have are all there; of the others, those that are not by default.
        """
        return {
            "cluster": ",".join(map(str, self.cluster)),
            "rules": self.rules,
            "interval": self.interval or POLICIES[policy].interval,
            "restart_cost": self.restart_cost,
            **self.others,
        }

    @property
    def others(self) -> dict[str, int | float | str]:
        """The settings that are not by default, and that published simulations do not have."""
        return {
            setting.name: _digest(value) if isinstance(value, Path) else value
            for setting in fields(self)
            if setting.name not in (*_PUBLISHED, *_APART)
            and (value := getattr(self, setting.name)) != setting.default
        }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
