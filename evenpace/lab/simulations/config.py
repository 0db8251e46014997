"""The configuration of a run of simulations: a value that checks itself."""

import hashlib
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from evenpace.lab.simulations.capacity_files import read_capacity
from evenpace.lab.simulations.published import CONDITIONS
from idl.settings import Setting, check_settings
from scheduler.cluster import Cluster
from scheduler.policies import POLICIES
from scheduler.policies.base import Policy
from scheduler.policies.pollux import Pollux
from scheduler.simulator.capacity import Capacity
from scheduler.simulator.rules import Rules

_OTHERS = ("interference", "power", "share_nodes", "failures", "repair", "seed", "notice", "checkpoint")
"""Settings on which results depend, and which published simulations do not have."""


@dataclass(frozen=True)
class SimulationConfig:
    """Workloads to simulate under policies, on one cluster.

    Raises:
        ValueError: A value is not allowed.
    """

    workload: Annotated[
        tuple[Path, ...],
        Setting("CSV file of arrivals, or a folder of such files; may be repeated."),
    ]
    policy: Annotated[tuple[str, ...], Setting("Policy; may be repeated.", choices=POLICIES)]
    traces: Annotated[
        Path,
        Setting(
            "Folder of MODEL folders: placements.csv, scalability.csv, validation-M.csv.",
            folder=True,
        ),
    ]
    nodes: Annotated[int, Setting("Nodes of the cluster.", least=1)] = 16
    devices_per_node: Annotated[int, Setting("Devices of each node.", least=1)] = 4
    interval: Annotated[int, Setting("Seconds from round to round.", least=1)] = Rules.interval
    restart_cost: Annotated[int, Setting("Seconds without progress after a changed placement.", least=0)] = (
        Rules.restart_cost
    )
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

    @property
    def rules(self) -> Rules:
        """Interval, costs of changes and losses, and interference."""
        return Rules(self.interval, self.restart_cost, self.checkpoint, self.notice, self.interference)

    def make_policy(self, name: str) -> Policy:
        """Return a new policy of this name, for one simulation."""
        if name == "pollux":
            return Pollux(self.power, avoid=not self.share_nodes)
        return POLICIES[name]()

    def read_capacity(self) -> Capacity | None:
        """Return the nodes that are there, over time; None for all, always.

        Raises:
            ValueError: The file is of another form, or names nodes that the cluster does not have.
            OSError: The file cannot be read.
        """
        names = [node.name for node in self.cluster.nodes]
        if self.failures is not None:
            return Capacity.of_failures(names, self.failures * 3600, self.repair, self.seed)
        return None if self.capacity is None else read_capacity(self.capacity, names)

    @property
    def cluster(self) -> Cluster:
        """Nodes of like devices."""
        return Cluster.of([("gpu", self.nodes, self.devices_per_node)])

    @property
    def conditions(self) -> dict[str, int | float | str]:
        """The settings on which results depend, beside policy, arrivals and measurements.

        Those of the published simulations are all there; of the others, those that are not by default.
        """
        conditions: dict[str, int | float | str] = {name: getattr(self, name) for name in CONDITIONS}
        if self.capacity is not None:
            conditions["capacity"] = hashlib.sha256(self.capacity.read_bytes()).hexdigest()[:16]
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name in _OTHERS and value != setting.default:
                conditions[setting.name] = value
        return conditions
