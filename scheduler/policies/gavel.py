"""Gavel: shares of time on each kind of devices by a linear programme (Narayanan et al., OSDI 2020)."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scheduler.allocation import Allocation, Placement
from scheduler.job import Job
from scheduler.policies.base import Policy, Round

_Device: TypeAlias = tuple[str, int]  # the name of its node, and its number on that
_CANNOT = 0.1  # iterations per second on a kind that has fewer devices than a job asks for, as published
_DECIMALS = 5  # of shares
_SLACK = 1e-6  # of the least throughput, relative, for the solver


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
        for job in at.jobs:
            times = self._time.setdefault(job.name, {})
            for kind in kinds:
                if kind not in times:
                    times[kind] = 0.5
                    self._total[kind] = self._total.get(kind, 0.0) + 0.5
        chosen = self._choose(at.jobs, cluster.devices_by_kind)
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

    def _shares(self, jobs: Sequence[Job], sizes: Mapping[str, int]) -> NDArray[np.float64]:
        """Return each job's share of time on each kind, (jobs, kinds)."""
        return max_sum_shares(*_programme(jobs, sizes))

    def _choose(self, jobs: Sequence[Job], sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return the jobs that run on each kind, with their numbers of devices."""
        wanted = {job.name: _wanted(job) for job in jobs}
        shares = self._shares(jobs, sizes)
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


class MaxMinFairness(Gavel):
    """The largest least throughput, by weights and relative to an equal split (Gavel, 4.1).

    It is what Gavel makes of least attained service: on devices of several kinds, jobs that have had equal
    times have not been served equally.
    """

    def _shares(self, jobs: Sequence[Job], sizes: Mapping[str, int]) -> NDArray[np.float64]:
        return max_min_shares(*_programme(jobs, sizes), np.array([job.weight for job in jobs]))


def equal_split(
    rates: NDArray[np.float64], wanted: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return each job's throughput with its part of an equal split of all devices' time, (jobs,).

    Args:
        rates: Throughput of each job on each kind of devices, (jobs, kinds).
        wanted: Devices that each job asks for, (jobs,).
        sizes: Devices of each kind, (kinds,).
    """
    shares = sizes / (len(rates) * wanted[:, None])
    shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
    split: NDArray[np.float64] = (rates * shares).sum(axis=1)
    return split


def max_min_shares(
    rates: NDArray[np.float64],
    wanted: NDArray[np.int64],
    sizes: NDArray[np.int64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the shares of time with the largest least throughput (Gavel, 4.1).

    A job's throughput counts relative to that with an equal split, by its weight. Of the shares with the
    largest least one, those with the largest sum are returned.

    Args:
        rates: Throughput of each job on each kind of devices, (jobs, kinds), above 0.
        wanted: Devices that each job asks for, (jobs,).
        sizes: Devices of each kind, (kinds,).
        weights: Of the jobs, above 0, (jobs,).

    Returns:
        Shares as those of `max_sum_shares`.
    """
    relative = rates / (equal_split(rates, wanted, sizes) * weights)[:, None]
    jobs, kinds = relative.shape
    upper, limits = _limits(wanted, np.ones(jobs), sizes)
    # Each row's throughput is at least the variable that is added as the last.
    throughputs = -np.array([np.kron(row, relative[job]) for job, row in enumerate(np.eye(jobs))])
    least = np.block([[upper, np.zeros((len(upper), 1))], [throughputs, np.ones((jobs, 1))]])
    whole = np.zeros(jobs * kinds + 1)
    whole[-1] = -1
    found = _solved(whole, least, np.concatenate([limits, np.zeros(jobs)]))[-1]
    bound = np.full(jobs, -found * (1 - _SLACK))
    shares = _solved(-relative.ravel(), np.concatenate([upper, throughputs]), np.concatenate([limits, bound]))
    rounded: NDArray[np.float64] = np.clip(np.round(shares.reshape(jobs, kinds), _DECIMALS), 0, 1)
    return rounded


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
    shares = _solved(-unlike[:, :-1].ravel(), *_limits(unlike[:, -1], count, sizes))
    shares = shares.reshape(len(unlike), len(sizes)) / count[:, None]
    rounded: NDArray[np.float64] = np.clip(np.round(shares[place.ravel()], _DECIMALS), 0, 1)
    return rounded


def _limits(
    wanted: NDArray[Any], times: NDArray[Any], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rows and the limits of shares: of each kind's devices, and of each job's time."""
    kinds = len(sizes)
    devices = np.kron(wanted, np.eye(kinds))  # (kinds, jobs * kinds)
    of_jobs = np.kron(np.eye(len(wanted)), np.ones(kinds))  # (jobs, jobs * kinds)
    return np.concatenate([devices, of_jobs]), np.concatenate([sizes, times])


def _solved(
    costs: NDArray[np.float64], upper: NDArray[np.float64], limits: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the variables, at least 0, with the least cost (RuntimeError: the solver failed)."""
    from scipy.optimize import linprog  # the command line, which names policies, does without SciPy

    solved = linprog(costs, A_ub=upper, b_ub=limits, method="highs")
    if solved.x is None:
        raise RuntimeError(f"the shares of jobs on kinds of devices: {solved.message}")
    found: NDArray[np.float64] = solved.x
    return found


def _programme(
    jobs: Sequence[Job], sizes: Mapping[str, int]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return jobs' rates on each kind, the devices that they ask for, and those of each kind.

    Raises:
        ValueError: A job asks for no number of devices, or its speed is not known.
    """
    rates = np.array([[_rate(job, kind, size) for kind, size in sizes.items()] for job in jobs])
    return rates, np.array([_wanted(job) for job in jobs]), np.array(list(sizes.values()))


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
