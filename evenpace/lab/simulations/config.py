"""The configuration of a run of simulations: a value that checks itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from idl.settings import Setting, check_settings
from scheduler.cluster import Cluster
from scheduler.policies import POLICIES
from scheduler.simulator.rules import Rules


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
        Path,
        Setting(
            "Folder of MODEL folders: placements.csv, scalability.csv, validation-M.csv.",
            folder=True,
            exists=True,
        ),
    ]
    nodes: Annotated[int, Setting("Nodes of the cluster.", least=1)] = 16
    devices_per_node: Annotated[int, Setting("Devices of each node.", least=1)] = 4
    interval: Annotated[int, Setting("Seconds from round to round.", least=1)] = Rules.interval
    restart_cost: Annotated[int, Setting("Seconds without progress after a changed placement.", least=0)] = (
        Rules.restart_cost
    )
    jobs: Annotated[int, Setting("Simulations at once, each in a process of its own.", least=1)] = 1

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def rules(self) -> Rules:
        """Interval and cost of a change."""
        return Rules(self.interval, self.restart_cost)

    @property
    def cluster(self) -> Cluster:
        """Nodes of like devices."""
        return Cluster.of([("gpu", self.nodes, self.devices_per_node)])

    @property
    def conditions(self) -> dict[str, int]:
        """The settings on which results depend, beside policy, arrivals and measurements."""
        return {
            "nodes": self.nodes,
            "devices_per_node": self.devices_per_node,
            "interval": self.interval,
            "restart_cost": self.restart_cost,
        }
