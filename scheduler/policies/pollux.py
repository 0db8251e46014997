"""Pollux: devices go where they raise jobs' goodput over fair shares the most (Qiao et al., OSDI 2021)."""

from collections.abc import Mapping
from math import ceil, isfinite

import numpy as np
from numpy.typing import NDArray

from scheduler.allocation import Allocation, devices
from scheduler.job import Job
from scheduler.nodes import Cluster
from scheduler.policies.assignment import Costs, assign
from scheduler.policies.base import Policy, Round

_DELAY = 30.0  # seconds that a change is taken to cost, δ
_WAITING = 1e-3  # added to each speedup, so that the mean exists where a job waits
_MOST_NODES = 16  # of one job
_NO_FACTOR = 1e-9  # in place of 0, so that even a job that should not change prefers devices to none


class Pollux(Policy):
    """The largest power mean of all jobs' speedups (Pollux, 4.2).

    The mean is largest where a sum over jobs is least, with the exponent -1 that of the reciprocals: `assign`
    gives out the devices. A changed placement has its speedup lessened by the restart that it costs, so that
    jobs stay where little is gained. None spans more than 16 nodes.
    """

    def __init__(self, power: float = -1.0, *, avoid: bool = True) -> None:
        """Make a policy.

        Args:
            power: Exponent p of the mean; the smaller, the fairer. From -1 to 1, allocations of small
                clusters were within 2% of the best; far below, they may be 10% less fit.
            avoid: Let at most one job that spans nodes have a part on any node, so that no two share its
                network.

        Raises:
            ValueError: The exponent is not finite.
        """
        if not isfinite(power):
            raise ValueError(f"power {power} of the mean: must be finite")
        self._power = power
        self._avoid = avoid

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
        costs = [_costs(job, at, number, self._power) for job in at.jobs]
        sizes = [node.devices for node in at.cluster.nodes]
        assigned = assign(sizes, costs, _MOST_NODES, avoid=self._avoid)
        return Allocation(
            {
                job.name: tuple((names[node], count) for node, count in parts)
                for job, parts in zip(at.jobs, assigned, strict=True)
            }
        )


def fitness(at: Round, allocation: Allocation, power: float = -1.0) -> float:
    """Return the power mean (14) of the jobs' speedups under an allocation.

    As in the published code, speedups are scaled by nodes/devices, and 1e-3 is added to each. There must be
    jobs, and devices of one kind.
    """
    scaled = []
    for job in at.jobs:
        placement = allocation[job.name]
        speedup = _speedups(job, at, np.array([len(placement)]), np.array([devices(placement)]))
        factor = 1.0 if placement == at.allocation[job.name] else _restart_factor(job)
        scaled.append(float(_scaled(at.cluster, factor * speedup)[0]))
    if power == 0:
        return float(np.exp(np.mean(np.log(scaled))))
    return float(np.mean(np.power(scaled, power)) ** (1 / power))


def _costs(job: Job, at: Round, number: Mapping[str, int], power: float) -> Costs:
    """Return costs of a job's placements, at least 0, with the least sum where the power mean is largest."""
    placement = at.allocation[job.name]
    size = max(node.devices for node in at.cluster.nodes)
    most = min(job.most_devices, at.cluster.devices)
    within, across = np.arange(min(most, size) + 1), np.arange(2, most + 1)
    nodes = np.concatenate([[len(placement)], np.sign(within), np.maximum(-(-across // size), 2)])
    speedups = _speedups(job, at, nodes, np.concatenate([[devices(placement)], within, across]))
    may_stay = 0 < devices(placement) <= job.most_devices and len(placement) <= _MOST_NODES
    speedups[1:] *= max(_restart_factor(job), _NO_FACTOR)
    scaled = _scaled(at.cluster, speedups)
    terms = np.log(scaled) if power == 0 else scaled**power
    costs = terms if power < 0 else terms.max() - terms
    moved = costs[1:]
    return Costs(
        moved[: len(within)],
        np.concatenate([[moved[0], np.inf], moved[len(within) :]]),
        float(costs[0]) if may_stay else np.inf,
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


def _scaled(cluster: Cluster, speedups: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return speedups scaled so that a node's share of the cluster counts 1, and 1e-3 more."""
    return speedups * (len(cluster.nodes) / cluster.devices) + _WAITING
