"""Gavel: shares of time on each kind of devices by a linear programme (Narayanan et al., OSDI 2020)."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scheduler.allocation import Allocation, Placement
from scheduler.job import Job
from scheduler.policies.base import Policy, Round

_Device: TypeAlias = tuple[str, int]  # the name of its node, and its number on that
_CANNOT = 0.1  # iterations per second on a kind that has fewer devices than a job asks for, as published
_DECIMALS = 5  # of shares


class Gavel(Policy):
    """The largest sum of throughputs, which jobs get by rounds (Gavel, 3.1, 5).

    A linear programme gives each job a share of time on each kind of devices. Devices go to the jobs that are
    the furthest behind their shares; each job has as many as its user asks for, on one kind, or none.
    """

    users_choose_devices: ClassVar[bool] = True
    users_choose_batch: ClassVar[bool] = True
    mixes: ClassVar[bool] = True
    interval: ClassVar[int] = 360

    def __init__(self) -> None:
        """Make a policy that has seen no job."""
        self._time: dict[str, dict[str, float]] = {}  # of each job on each kind, in rounds
        self._total: dict[str, float] = {}  # of all jobs on each kind, also of those that have ended
        self._had: dict[str, tuple[_Device, ...]] = {}  # devices of each job

    def allocate(self, at: Round) -> Allocation:
        """Return the placements of all jobs for the time until the next round.

        Raises:
            ValueError: A job asks for no number of devices, or its speed is not known.
        """
        kinds, cluster = at.cluster.kinds, at.cluster
        sizes = {kind: sum(node.devices for node in cluster.nodes if node.kind == kind) for kind in kinds}
        for job in at.jobs:
            times = self._time.setdefault(job.name, {})
            for kind in kinds:
                if kind not in times:
                    times[kind] = 0.5
                    self._total[kind] = self._total.get(kind, 0.0) + 0.5
        chosen = self._choose(at.jobs, sizes)
        had, self._had = self._had, {}
        for kind in kinds:
            there = [
                (node.name, slot)
                for node in cluster.nodes
                if node.kind == kind
                for slot in range(node.devices)
            ]
            self._had |= _place(chosen[kind], had, there)
            for name in chosen[kind]:
                self._time[name][kind] += 1
                self._total[kind] += 1
        return Allocation({name: _placement(its) for name, its in self._had.items()})

    def _choose(self, jobs: Sequence[Job], sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return the jobs that run on each kind, with their numbers of devices."""
        wanted = {job.name: _wanted(job) for job in jobs}
        rates = np.array([[_rate(job, kind, size) for kind, size in sizes.items()] for job in jobs])
        shares = max_sum_shares(rates, np.array(list(wanted.values())), np.array(list(sizes.values())))
        entries = []
        for column, kind in enumerate(sizes):
            for row, job in enumerate(jobs):
                share = float(shares[row, column])
                priority = share / (self._time[job.name][kind] / self._total[kind])
                entries.append((priority, share, job.name, kind))
        entries.sort(key=lambda entry: entry[:2], reverse=True)
        left, chosen = dict(sizes), {kind: dict[str, int]() for kind in sizes}
        for _, _, name, kind in entries:
            if wanted[name] <= left[kind] and not any(name in its for its in chosen.values()):
                chosen[kind][name] = wanted[name]
                left[kind] -= wanted[name]
        return chosen


def max_sum_shares(
    rates: NDArray[np.float64], wanted: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the shares of time with the largest sum of throughputs (Gavel, 3.1).

    Args:
        rates: Throughput of each job on each kind of devices, (jobs, kinds).
        wanted: Devices that each job asks for, (jobs,).
        sizes: Devices of each kind, (kinds,).

    Returns:
        Shares from 0 to 1, (jobs, kinds), equal for jobs with equal throughputs and devices: no job has more
        than all of its time, nor any kind more than all of its devices in use.
    """
    # Of the optima one that treats like jobs alike, as the published solver's interior point does: a vertex
    # would leave some of them without a share.
    unlike, place, count = np.unique(
        np.column_stack([rates, wanted]), axis=0, return_inverse=True, return_counts=True
    )
    jobs, kinds = len(unlike), len(sizes)
    devices = np.kron(unlike[:, -1], np.eye(kinds))  # (kinds, jobs * kinds)
    times = np.kron(np.eye(jobs), np.ones(kinds))  # (jobs, jobs * kinds)
    from scipy.optimize import linprog  # the command line, which names policies, does without SciPy

    solved = linprog(
        -unlike[:, :-1].ravel(),
        A_ub=np.concatenate([devices, times]),
        b_ub=np.concatenate([sizes, count]),
        method="highs",
    )
    if solved.x is None:
        raise RuntimeError(f"the shares of {jobs} jobs on {kinds} kinds of devices: {solved.message}")
    shares = solved.x.reshape(jobs, kinds) / count[:, None]
    rounded: NDArray[np.float64] = np.clip(np.round(shares[place.ravel()], _DECIMALS), 0, 1)
    return rounded


def _wanted(job: Job) -> int:
    if job.devices is None:
        raise ValueError(f"job {job.name!r} must ask for a number of devices under Gavel")
    return job.devices


def _rate(job: Job, kind: str, size: int) -> float:
    if job.iterations_per_second is None:
        raise ValueError(f"job {job.name!r} must have a known speed under Gavel")
    return job.iterations_per_second(kind) if _wanted(job) <= size else _CANNOT


def _place(
    jobs: Mapping[str, int], had: Mapping[str, tuple[_Device, ...]], there: Sequence[_Device]
) -> dict[str, tuple[_Device, ...]]:
    """Return the devices of each job on a kind; large jobs first, staying if they can.

    Args:
        jobs: Number of devices of each.
        had: What jobs had in the round before.
        there: The devices of the kind, in order.
    """
    left = dict.fromkeys(there)
    placed: dict[str, tuple[_Device, ...]] = {}
    for number in sorted(set(jobs.values()), reverse=True):
        alike = [name for name, its in jobs.items() if its == number]
        for name in alike:
            devices = had.get(name, ())
            if len(devices) == number and left.keys() >= set(devices):
                placed[name] = devices
                for device in devices:
                    del left[device]
        for name in alike:
            if name not in placed:
                placed[name] = tuple(itertools.islice(left, number))
                for device in placed[name]:
                    del left[device]
    return placed


def _placement(devices: Sequence[_Device]) -> Placement:
    """Return the number of devices on each node, in order."""
    return tuple(Counter(node for node, _ in devices).items())
