"""The configurations of experiments with schedulers on measured step times: values that check themselves."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from idl.settings import Checked, Setting
from lab.fields import whole_numbers

Traces = Annotated[
    Path,
    Setting(
        "Folder of MODEL folders: placements.csv, scalability.csv, validation-M.csv.",
        folder=True,
    ),
]
"""Measured step times, and trainings epoch by epoch."""


@dataclass(frozen=True)
class ElasticityConfig(Checked):
    """The configuration of jobs with priorities on one cluster, with and without resizing.

    Raises:
        ValueError: A value is not allowed.
    """

    traces: Traces  # folder with cifar10, imagenet and bert
    # Seeds of the jobs of a trace, a trace each.
    seeds: Annotated[
        tuple[int, ...],
        Setting(
            "A trace of 20 jobs with each; medians.",
            metavar="SEED,...",
            read=partial(whole_numbers, "seeds", least=0),
        ),
    ] = (1, 2, 3)
    # Seconds from one round of the policy to the next; the paper's acts at once.
    interval: Annotated[int, Setting("Seconds from round to round.", least=1)] = 5
    # Seconds without progress after a start or a resize; the paper says less than one.
    resize_cost: Annotated[int, Setting("Seconds without progress after a resize.", least=0)] = 1


Nodes = Annotated[int, Setting("Nodes that a job may have at most.", least=1)]
"""Nodes for one job."""

DevicesPerNode = Annotated[int, Setting("Devices of each node.", least=1)]
"""Devices of a node."""

RestartCost = Annotated[int, Setting("Seconds without progress after a changed number of nodes.", least=0)]
"""Cost of a change."""


@dataclass(frozen=True)
class AutoscalingConfig(Checked):
    """The configuration of one job that rents nodes by goodput, and by throughput.

    Raises:
        ValueError: A value is not allowed.
    """

    traces: Traces
    model: Annotated[str, Setting("Model to train, a folder of the traces.", metavar="MODEL")] = "imagenet"
    nodes: Nodes = 16
    devices_per_node: DevicesPerNode = 4
    restart_cost: RestartCost = 30


@dataclass(frozen=True)
class EpochScalingConfig(Checked):
    """The configuration of jobs that choose their nodes for each epoch, by forecast batch sizes.

    Raises:
        ValueError: A value is not allowed.
    """

    traces: Traces
    nodes: Nodes = 16
    devices_per_node: DevicesPerNode = 4
    restart_cost: RestartCost = 30
    # Threshold that batch sizes follow: a higher one asks for larger batches.
    similarity: Annotated[float, Setting("Threshold that batch sizes follow.", above=0, below=1)] = 0.1
