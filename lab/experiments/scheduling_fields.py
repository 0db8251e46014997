"""Fields and constants of experiments with schedulers on measured step times."""

from pathlib import Path
from typing import Annotated

from idl.settings import Setting

Traces = Annotated[
    Path, Setting("Folder of MODEL folders: placements.csv, scalability.csv, validation-M.csv.", folder=True)
]
"""Measured step times, and trainings epoch by epoch."""


MOST_NODES = 16
"""Nodes that a job may have."""

DEVICES = 4
"""Devices of each node."""

RESTART_COST = 30
"""Seconds without progress after a changed number of nodes."""
