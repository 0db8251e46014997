"""The training of one job that changes its nodes from epoch to epoch, by measured step times and noise.

This module must not know how nodes and batches are chosen. Each node has the same number of devices, and the
job has them all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from lab.simulator.applications import Application
from scheduler.goodput import Limits
from scheduler.throughput import Throughput, fit

_SIZES = 6  # local batches for which a step is timed, in geometric sequence


class Configuration(NamedTuple):
    """The nodes of an epoch, and the samples and accumulations of each device."""

    nodes: int
    local: int
    accumulations: int


@dataclass(frozen=True, slots=True)
class TrainedEpoch:
    """What happened in an epoch."""

    nodes: int  # number of nodes
    batch: int  # samples of the whole batch
    seconds: float  # duration, the pause for a changed number of nodes included
    efficiency: float  # statistical efficiency, relative to the smallest batch


Choose: TypeAlias = Callable[[int, TrainedEpoch | None], Configuration]
"""From the number of an epoch, from 0, and the one before, to the configuration."""


def train(application: Application, choose: Choose, devices: int, restart_cost: float) -> list[TrainedEpoch]:
    """Train with the configuration that `choose` returns before each epoch, and return the epochs.

    The restart cost is seconds without progress when the number of nodes changes.
    """
    trained: list[TrainedEpoch] = []
    done = 0.0
    for epoch in range(application.epochs):
        before = trained[-1] if trained else None
        nodes, local, accumulations = choose(epoch, before)
        batch = nodes * devices * local * (accumulations + 1)
        step = step_seconds(application, Configuration(nodes, local, accumulations), devices)
        end = application.epoch_end(epoch)
        seconds = (end - done) / application.gain(batch, epoch) * step
        done = end
        if before is not None and before.nodes != nodes:
            seconds += restart_cost
        efficiency = application.noise(batch, epoch).efficiency(batch, application.initial)
        trained.append(TrainedEpoch(nodes, batch, seconds, efficiency))
    return trained


def step_seconds(application: Application, configuration: Configuration, devices: int) -> float:
    """Return the seconds of an iteration with all its accumulations."""
    nodes, local, accumulations = configuration
    (kind,) = application.batches
    step, sync = application.step_time(kind, (devices,) * nodes, local)
    return step + accumulations * (step - sync)


def configure(batches: Limits, batch: float, nodes: int, devices: int) -> Configuration:
    """Return the configuration with a whole batch, or with the least that fills the devices of some nodes."""
    replicas = nodes * devices
    local, accumulations = batches.share(max(batch, batches.least_local * replicas), replicas)
    return Configuration(nodes, int(local), int(accumulations))


def most_nodes(batches: Limits, nodes: int, devices: int) -> int:
    """Return how many of some nodes have at least the least local batch on each device."""
    most = min(nodes, batches.largest // (batches.least_local * devices))
    if most < 1:
        raise ValueError(
            f"nodes of {devices} devices: the largest batch, {batches.largest} samples, has less than the "
            f"least local one, {batches.least_local} samples, on each"
        )
    return most


def profile(application: Application, nodes: int, devices: int) -> Throughput:
    """Fit step times to those measured on 1, 2, ... nodes, over all sizes of local batches that may occur."""
    ((kind, batches),) = application.batches.items()
    timed = {}
    for count in range(1, nodes + 1):
        most = min(batches.most_local, batches.largest // (count * devices))
        for size in np.geomspace(batches.least_local, most, _SIZES).round().astype(int).tolist():
            timed[count, count * devices, size] = application.step_time(kind, (devices,) * count, size)
    return fit(timed)
