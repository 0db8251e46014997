"""Pollux: devices go where they raise jobs' goodput over fair shares the most (Qiao et al., OSDI 2021)."""

from collections.abc import Mapping
from math import ceil

import numpy as np
from numpy.typing import NDArray

from scheduler.allocation import Allocation, devices
from scheduler.cluster import Cluster
from scheduler.job import Job
from scheduler.policies.assignment import Costs, assign
from scheduler.policies.base import Policy, Round

_DELAY = 30.0  # seconds that a change is taken to cost, δ
_WAITING = 1e-3  # added to each speedup, so that the mean exists where a job waits
_MOST_NODES = 16  # of one job
_NO_FACTOR = 1e-9  # in place of 0, so that even a job that should not change prefers devices to none


class Pollux(Policy):
    """The largest power mean, with the exponent -1, of all jobs' speedups (Pollux, 4.2).

    The mean is largest where the sum of the reciprocals is least, and this is a sum over jobs: `assign` gives
    out the devices. A changed placement has its speedup lessened by the restart that it costs, so that jobs
    stay where little is gained. At most one job that spans nodes has a part on any node, so that no two share
    its network, and none spans more than 16.
    """

    def allocate(self, at: Round) -> Allocation:
        """Return the placements of all jobs for the time until the next round.

        Raises:
            ValueError: The cluster has devices of several kinds, which Pollux takes to be alike.
        """
        if len(at.cluster.kinds) > 1:
            raise ValueError(
                f"Pollux takes all devices to be alike; the cluster has {', '.join(at.cluster.kinds)}"
            )
        if not (at.jobs and at.cluster.nodes):
            return Allocation()
        names = [node.name for node in at.cluster.nodes]
        number = {name: i for i, name in enumerate(names)}
        costs = [_costs(job, at, number) for job in at.jobs]
        assigned = assign([node.devices for node in at.cluster.nodes], costs, _MOST_NODES)
        return Allocation(
            {
                job.name: tuple((names[node], count) for node, count in parts)
                for job, parts in zip(at.jobs, assigned, strict=True)
            }
        )


def fitness(at: Round, allocation: Allocation) -> float:
    """Return the power mean (14), with the exponent -1, of the jobs' speedups under an allocation.

    As in the published code, speedups are scaled by nodes/devices, and 1e-3 is added to each. There must be
    jobs, and devices of one kind.
    """
    reciprocals = []
    for job in at.jobs:
        placement = allocation[job.name]
        speedup = _speedups(job, at, np.array([len(placement)]), np.array([devices(placement)]))
        factor = 1.0 if placement == at.allocation[job.name] else _restart_factor(job)
        reciprocals.append(float(_reciprocals(at.cluster, factor * speedup)[0]))
    return len(reciprocals) / sum(reciprocals)


def _costs(job: Job, at: Round, number: Mapping[str, int]) -> Costs:
    """Return the reciprocals of a job's speedups, which are to have the least sum."""
    placement = at.allocation[job.name]
    size = max(node.devices for node in at.cluster.nodes)
    most = min(job.most_devices, at.cluster.devices)
    within, across = np.arange(min(most, size) + 1), np.arange(2, most + 1)
    nodes = np.concatenate([[len(placement)], np.sign(within), np.maximum(-(-across // size), 2)])
    speedups = _speedups(job, at, nodes, np.concatenate([[devices(placement)], within, across]))
    may_stay = 0 < devices(placement) <= job.most_devices and len(placement) <= _MOST_NODES
    moved = _reciprocals(at.cluster, max(_restart_factor(job), _NO_FACTOR) * speedups[1:])
    return Costs(
        moved[: len(within)],
        np.concatenate([[moved[0], np.inf], moved[len(within) :]]),
        float(_reciprocals(at.cluster, speedups[0])) if may_stay else np.inf,
        tuple((number[name], count) for name, count in placement),
    )


def _speedups(
    job: Job, at: Round, nodes: NDArray[np.int64], replicas: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the goodput of each placement over that of a fair share (15), 0 where there is no device.

    A fair share is taken to be on one node, as in the published code. The speedup of a job of which nothing
    is known is the number of its devices over that of a fair share.
    """
    fair = ceil(at.cluster.devices / len(at.jobs))
    (kind,) = at.cluster.kinds
    goodput = job.goodputs.get(kind)
    if goodput is not None:
        placed = replicas > 0
        fair_replicas = min(fair, goodput.most_replicas)
        goodputs = goodput.best(
            np.append(nodes[placed], 1), np.append(replicas[placed], fair_replicas)
        ).goodput
        if goodputs[-1] > 0:
            speedups = np.zeros(len(replicas))
            speedups[placed] = goodputs[:-1] / goodputs[-1]
            return speedups
    return replicas / fair


def _restart_factor(job: Job) -> float:
    """Return the share of its time that a job trains if it restarts as often as so far: REALLOC_FACTOR."""
    return max(job.age - _DELAY * job.restarts, 0.0) / (job.age + _DELAY)


def _reciprocals(cluster: Cluster, speedups: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 by the speedups in the published scale, in which a node's share of the cluster counts 1."""
    its: NDArray[np.float64] = 1 / (speedups * (len(cluster.nodes) / cluster.devices) + _WAITING)
    return its
