"""Sia: kind and number of devices by an integer programme (Jayaram Subramanya et al., SOSP 2023)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.allocation import Allocation, Placement, devices
from scheduler.goodput import Goodput
from scheduler.job import Job
from scheduler.nodes import Cluster, Node
from scheduler.policies.base import Policy, Round

_FAIRNESS = -0.5  # exponent p of goodputs
_SECONDS = 60.0  # of the solver; it takes hundredths, but did not always end on nearly equal costs
_WAITING = 1.1  # cost of a job without devices, λ; a job's least cost is 1 at the most before restarts
_LEAST = 1e-4  # goodputs up to here count as none


class Configuration(NamedTuple):
    """Devices of one kind, on a part of one node or on whole nodes."""

    kind: str
    nodes: int
    devices: int


@dataclass(frozen=True)
class _Row:
    """The values of configurations for a job, and all that they were worked out from."""

    goodputs: Mapping[str, Goodput]
    most_devices: int
    values: NDArray[np.float64]


class Sia(Policy):
    """The least sum of powers of goodputs, over configurations of one kind of devices each (Sia, 3.3, 3.4).

    A configuration is a power of two of devices of one node, or whole nodes. A job's goodputs are divided by
    its least, and those of other configurations than its own lessened by the restart that they cost. What a
    job has not learned of a kind is taken from the first kind that it knows, by the ratio of the speeds of
    single devices; a job that knows none gets one device. While a job pauses it keeps its configuration.
    """

    users_limit_batch: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    def __init__(self) -> None:
        """Make a policy that has worked out nothing."""
        self._rows: dict[str, _Row] = {}
        self._choices: list[Configuration] = []

    def allocate(self, at: Round) -> Allocation:
        """Return the placements of all jobs for the time until the next round."""
        if not at.jobs:
            return Allocation()
        choices = configurations(at.cluster)
        if choices != self._choices:
            self._rows, self._choices = {}, choices
        self._rows = {job.name: self._row(job, at.cluster, choices) for job in at.jobs}
        free = dict(at.cluster.devices_by_kind)
        chosen: dict[str, tuple[str, int]] = {}
        for job in at.jobs:
            if job.paused and (had := _had(at, job)):
                chosen[job.name] = had
                free[had[0]] -= had[1]
        others = [job for job in at.jobs if job.name not in chosen]
        costs = np.array([_costs(job, self._rows[job.name].values, choices, _had(at, job)) for job in others])
        for job, choice in zip(others, choose(costs, choices, free), strict=True):
            if choice is not None:
                chosen[job.name] = choices[choice].kind, choices[choice].devices
        placed: dict[str, Placement] = {}
        for kind in at.cluster.kinds:
            # In order of submission, also those that pause, so that equal numbers are placed in this order.
            its = {job.name: chosen[job.name] for job in at.jobs if job.name in chosen}
            numbers = {name: number for name, (on, number) in its.items() if on == kind}
            placed |= _place(numbers, [node for node in at.cluster.nodes if node.kind == kind])
        return Allocation(placed)

    def _row(self, job: Job, cluster: Cluster, choices: Sequence[Configuration]) -> _Row:
        row = self._rows.get(job.name)
        if row is None or row.most_devices != job.most_devices or row.goodputs != job.goodputs:
            row = _Row(job.goodputs, job.most_devices, _values(job, cluster, choices))
        return row


def configurations(cluster: Cluster) -> list[Configuration]:
    """Return the configurations of all kinds, in the order of the kinds, then by devices (Sia, 3.2)."""
    found = []
    for kind, total in cluster.devices_by_kind.items():
        size = cluster.node_sizes[kind]
        within = [2**power for power in range(size.bit_length()) if 2**power < size]
        found += [Configuration(kind, 1, number) for number in within]
        found += [Configuration(kind, nodes, nodes * size) for nodes in range(1, total // size + 1)]
    return found


def choose(
    costs: NDArray[np.float64], choices: Sequence[Configuration], free: Mapping[str, int]
) -> list[int | None]:
    """Return the configuration of each job, by number, with the least sum of costs; None to wait.

    Args:
        costs: Of each configuration for each job, (jobs, configurations); waiting costs 1.1.
        choices: The configurations.
        free: Devices of each kind that may be given away.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # the command line does without SciPy

    chosen: list[int | None] = [None] * len(costs)
    # No sum is the least with a configuration that costs more than to wait.
    jobs, numbers = np.nonzero(costs < _WAITING) if len(costs) else (np.array([], int),) * 2
    if not len(jobs):
        return chosen
    columns = np.arange(len(jobs))
    kinds = list(free)
    its = [choices[int(number)] for number in numbers]
    limits = np.zeros((len(costs) + len(kinds), len(jobs)))
    limits[jobs, columns] = 1
    rows = len(costs) + np.array([kinds.index(choice.kind) for choice in its])
    limits[rows, columns] = [choice.devices for choice in its]
    most = np.concatenate([np.ones(len(costs)), [free[kind] for kind in kinds]])
    solved = milp(
        costs[jobs, numbers] - _WAITING,
        integrality=np.ones(len(jobs)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(limits, ub=most),
        options={"time_limit": _SECONDS},
    )
    if solved.x is None:
        raise RuntimeError(f"the configurations of {len(costs)} jobs: {solved.message}")
    for column in np.flatnonzero(np.round(solved.x)):
        chosen[jobs[column]] = int(numbers[column])
    return chosen


def _had(at: Round, job: Job) -> tuple[str, int] | None:
    """Return the kind and the number of the devices that a job has, if it has any."""
    placement = at.allocation[job.name]
    return (at.cluster.by_name[placement[0][0]].kind, devices(placement)) if placement else None


def _values(job: Job, cluster: Cluster, choices: Sequence[Configuration]) -> NDArray[np.float64]:
    """Return the goodputs of configurations relative to the least of them, 0 for those not allowed."""
    numbers = np.array([choice.devices for choice in choices])
    known = next((kind for kind in cluster.kinds if kind in job.goodputs), None)
    values = np.zeros(len(choices))
    if known is not None:
        for kind in cluster.kinds:
            its = np.array([choice.kind == kind for choice in choices]) & (numbers <= job.most_devices)
            if kind in job.goodputs:
                nodes = np.array([choice.nodes for choice in choices])[its]
                values[its] = _goodputs(job.goodputs[kind], nodes, numbers[its])
            else:
                nodes = -(-numbers[its] // cluster.node_sizes[known])
                ratio = job.speeds[kind] / job.speeds[known] if {kind, known} <= job.speeds.keys() else 1.0
                values[its] = ratio * _goodputs(job.goodputs[known], nodes, numbers[its])
    values[values <= _LEAST] = 0
    if not values.any():
        return np.where(numbers == 1, 1.0, 0.0)
    relative: NDArray[np.float64] = values / values[values > 0].min()
    return relative


def _goodputs(goodput: Goodput, nodes: NDArray[np.int64], replicas: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the best goodputs; replicas for which the largest batch is too small have their least batch."""
    if not len(replicas):
        return np.zeros(0)
    least = goodput.limits.least_local
    beyond = replicas * least > goodput.limits.largest
    best = goodput.best(nodes, replicas).goodput
    found: NDArray[np.float64] = np.where(beyond, goodput(nodes, replicas, least), best)
    return found


def _costs(
    job: Job, values: NDArray[np.float64], choices: Sequence[Configuration], had: tuple[str, int] | None
) -> NDArray[np.float64]:
    """Return the costs of configurations for a job.

    They are not rounded to two decimals as the published ones are: of the many sums that are then equal, the
    solver would take any.
    """
    if had is not None:
        factor = 1.0
        if job.age >= job.restart_cost:
            factor = max(job.age - job.restart_cost * job.restarts, 0.0) / (job.age + job.restart_cost)
        stays = np.array([(choice.kind, choice.devices) == had for choice in choices])
        values = np.where(stays, values, factor * values)
    costs = np.full(len(values), np.inf)
    np.power(values, _FAIRNESS, out=costs, where=values > 0)
    return costs


def _place(jobs: Mapping[str, int], nodes: Sequence[Node]) -> dict[str, Placement]:
    """Place jobs on nodes of one kind, those with most devices first, going round the nodes.

    A job gets whole free nodes as far as it can fill them, then what is free from the next node on.
    """
    if not jobs:
        return {}
    free = [node.devices for node in nodes]
    size = max(free)
    placed = {}
    at = 0
    for name, number in sorted(jobs.items(), key=lambda item: -item[1]):
        parts = []
        left, whole = number, number // size
        for _ in range(len(nodes) if whole else 0):
            if whole and free[at] == size:
                parts.append((nodes[at].name, size))
                free[at] = 0
                left, whole = left - size, whole - 1
            elif not whole:
                break
            at = (at + 1) % len(nodes)
        while left:
            if taken := min(left, free[at]):
                parts.append((nodes[at].name, taken))
                free[at] -= taken
                left -= taken
            at = (at + 1) % len(nodes)
        placed[name] = tuple(parts)
    return placed
