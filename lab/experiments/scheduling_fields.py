"""Fields of the configurations of experiments with schedulers on measured step times."""

from pathlib import Path
from typing import Annotated

from idl.settings import Setting

Traces = Annotated[
    Path,
    Setting(
        "Folder of MODEL folders: placements.csv, scalability.csv, validation-M.csv.",
        folder=True,
    ),
]
"""Measured step times, and trainings epoch by epoch."""

Nodes = Annotated[int, Setting("Nodes that a job may have at most.", least=1)]
"""Nodes for one job."""

DevicesPerNode = Annotated[int, Setting("Devices of each node.", least=1)]
"""Devices of a node."""

RestartCost = Annotated[int, Setting("Seconds without progress after a changed number of nodes.", least=0)]
"""Cost of a change."""
