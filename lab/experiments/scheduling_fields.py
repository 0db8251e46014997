"""Fields of the configurations of experiments with schedulers on measured step times."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from idl.settings import Checked, Setting

Traces = Annotated[
    Path, Setting("Folder of MODEL folders: placements.csv, scalability.csv, validation-M.csv.", folder=True)
]
"""Measured step times, and trainings epoch by epoch."""


@dataclass(frozen=True)
class NodesConfig(Checked):
    """The configuration of jobs that choose their nodes."""

    traces: Traces
    nodes: Annotated[int, Setting("Nodes that a job may have at most.", least=1)] = 16
    devices_per_node: Annotated[int, Setting("Devices of each node.", least=1)] = 4
    restart_cost: Annotated[
        int, Setting("Seconds without progress after a changed number of nodes.", least=0)
    ] = 30
