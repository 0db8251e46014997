"""Devices of a cluster, given to jobs so that the sum of the jobs' costs is small: prices, then repair.

A job has a cost for each number of devices, on one node or across nodes, and another one for staying where it
is. This module must not know what the costs stand for. Jobs and nodes go by their numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.policies.occupancy import Occupancy, Parts

_HALVINGS = 50  # of the interval of prices
_PASSES = 4  # over the jobs in repair, at the most
_WAYS = 3  # to make room that are tried for each job in each pass
_EQUAL = 1e-9  # relative difference of costs that is rounding error


@dataclass(frozen=True)
class Costs:
    """A job's costs, the less the better; inf for what it may not have."""

    # Costs of 0, 1, ... devices of one node, to which the job would move; the first is finite.
    within: NDArray[np.float64]
    across: NDArray[np.float64]  # costs of 0, 1, ... devices of several nodes, likewise
    stays: float = np.inf  # cost of the devices that it has
    parts: Parts = ()  # the devices that it has


class _Choices:
    """What is best for each job where a device has a price.

    Attributes:
        within: For each job and each limit, the number of devices of one node up to that with the least cost,
            price included, and that cost.
    """

    def __init__(self, jobs: Sequence[Costs], price: float) -> None:
        self.price = price  # cost of each device
        self.within = [_least_up_to(job.within, price) for job in jobs]
        self.across = [_least_up_to(job.across, price) for job in jobs]  # likewise, of several nodes
        # Cost of staying, price included, (jobs,).
        self.stays = [job.stays + price * _number(job.parts) for job in jobs]
        # Least cost of not staying, price included, (jobs,).
        self.moves = [
            min(within[-1][1], across[-1][1]) for within, across in zip(self.within, self.across, strict=True)
        ]

    def best(self, job: int) -> float:
        """Return the least cost, price included."""
        return min(self.moves[job], self.stays[job])


def _least_up_to(costs: NDArray[np.float64], price: float) -> list[tuple[int, float]]:
    numbers = np.arange(len(costs))
    priced = costs + price * numbers
    least = np.minimum.accumulate(priced)
    first = np.concatenate([[True], priced[1:] < least[:-1]])
    return list(zip(np.maximum.accumulate(np.where(first, numbers, 0)).tolist(), least.tolist(), strict=True))


def assign(
    sizes: Sequence[int], jobs: Sequence[Costs], most_nodes: int, *, avoid: bool = True
) -> list[Parts]:
    """Give devices to jobs so that the sum of costs is small, and no free device could lower a job's.

    A price of devices is found at which jobs would take about as many as there are. The jobs that would stay
    at that price do, and the others are placed; besides, all jobs stay as far as they can. Free devices go to
    the jobs whose costs they lower. The better of the two is repaired: a job that does not have what it would
    take gets it at the expense of jobs in the way, which take what is left, wherever that lowers the sum.

    Args:
        sizes: Number of devices of each node, (nodes,).
        jobs: The jobs' costs, (jobs,).
        most_nodes: The most nodes that one job may span.
        avoid: Let no node have parts of two jobs that span nodes.

    Returns:
        The devices of each job, empty for one that waits; (jobs,).
    """
    if not jobs or not sizes:
        return [()] * len(jobs)
    price = _price(sum(sizes), jobs)
    priced, free = _Choices(jobs, price), _Choices(jobs, 0.0)
    willing = [job for job in range(len(jobs)) if priced.stays[job] <= priced.moves[job]]
    starts = []
    for staying in (willing, range(len(jobs))):
        search = _Search(Occupancy(sizes, most_nodes, avoid=avoid), jobs, priced, free)
        search.start(staying)
        starts.append(search)
    best = min(starts, key=_Search.total)
    best.repair()
    return best.parts


def _price(devices: int, jobs: Sequence[Costs]) -> float:
    """Return about the least price at which the jobs together take no more devices than there are."""
    longest = max(len(costs) for job in jobs for costs in (job.within, job.across))
    costs = np.full((len(jobs), 2 * longest + 1), np.inf)
    numbers = np.zeros(costs.shape)
    numbers[:, : 2 * longest] = np.tile(np.arange(longest), 2)
    for row, job in enumerate(jobs):
        costs[row, : len(job.within)] = job.within
        costs[row, longest : longest + len(job.across)] = job.across
        costs[row, -1], numbers[row, -1] = job.stays, _number(job.parts)
    rows = np.arange(len(jobs))

    def taken(price: float) -> float:
        return float(numbers[rows, (costs + price * numbers).argmin(axis=1)].sum())

    if taken(0.0) <= devices:
        return 0.0
    low, high = 0.0, float(costs[:, 0].max())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if taken(middle) <= devices else (middle, high)
    return high


class _Search:
    """The devices of all jobs, changed step by step."""

    def __init__(self, nodes: Occupancy, jobs: Sequence[Costs], priced: _Choices, free: _Choices) -> None:
        self.parts: list[Parts] = [()] * len(jobs)  # the devices of each job, (jobs,)
        self._jobs = jobs
        self._nodes = nodes
        self._priced = priced
        self._free = free
        self._waiting = [float(job.within[0]) for job in jobs]
        self._costs = list(self._waiting)
        self._left = sum(nodes.sizes)

    def total(self) -> float:
        """Return the sum of costs."""
        return sum(self._costs)

    def start(self, staying: Iterable[int]) -> None:
        """Let some jobs stay, as far as they can, place the others, and give away what is left."""
        for job in staying:
            if self._may_stay(job):
                self._put(job, self._jobs[job].parts, self._jobs[job].stays)
        self._place(job for job, parts in enumerate(self.parts) if not parts)
        self._fill()

    def repair(self) -> None:
        """Give jobs what they would take at the price, where that lowers the sum of costs."""
        for _ in range(_PASSES):
            before = self.total()
            for job in sorted(range(len(self._jobs)), key=self._gain):
                if self._gain(job) >= -_EQUAL * self._costs[job]:
                    continue
                for way in self._ways(job)[:_WAYS]:
                    if self._try(job, way):
                        break
            if self.total() >= before * (1 - _EQUAL):
                break

    def _value(self, job: int) -> float:
        return self._costs[job] + self._priced.price * _number(self.parts[job])

    def _gain(self, job: int) -> float:
        """Return the change, 0 or less, by what a job would take; price included."""
        return self._priced.best(job) - self._value(job)

    def _loss(self, job: int) -> float:
        """Return the least change if a job has to move; price included."""
        return self._priced.moves[job] - self._value(job)

    def _may_stay(self, job: int) -> bool:
        its = self._jobs[job]
        return np.isfinite(its.stays) and self._nodes.fits(its.parts)

    def _put(self, job: int, parts: Parts, cost: float) -> None:
        """Give devices to a job that has none."""
        self._nodes.take(job, parts)
        self.parts[job], self._costs[job] = parts, cost
        self._left -= _number(parts)

    def _lift(self, job: int) -> tuple[Parts, float]:
        """Take all devices of a job, and return what it had."""
        had = self.parts[job], self._costs[job]
        self._nodes.release(job, had[0])
        self.parts[job], self._costs[job] = (), self._waiting[job]
        self._left += _number(had[0])
        return had

    def _choose(self, job: int, choices: _Choices) -> None:
        """Give a job that has none the devices that are best for it."""
        its, nodes = self._jobs[job], self._nodes
        number, least = _up_to(choices.within[job], nodes.most_within())
        number_across, least_across = _up_to(choices.across[job], nodes.most_across())
        if choices.stays[job] <= min(least, least_across) and self._may_stay(job):
            self._put(job, its.parts, its.stays)
        elif least_across < least:
            parts = nodes.find_across(number_across)
            self._put(job, parts, float((its.across if len(parts) > 1 else its.within)[number_across]))
        elif number:
            self._put(job, nodes.find_within(number), float(its.within[number]))

    def _place(self, jobs: Iterable[int]) -> None:
        """Give jobs that have none what they take at the price, first those that would take the most."""
        within, across = self._priced.within, self._priced.across
        most = {job: max(within[job][-1][0], across[job][-1][0]) for job in jobs}
        for job in sorted(most, key=lambda job: -most[job]):
            self._choose(job, self._priced)

    def _fill(self) -> list[tuple[int, tuple[Parts, float]]]:
        """Give free devices to jobs whose costs they lower; return these with what they had before."""
        changed = []
        gaining = True
        while gaining and self._left:
            gaining = False
            within, across = self._nodes.most_within(), self._nodes.most_across()
            gains = []
            for job, cost in enumerate(self._costs):
                least = self._least(job, within, across)
                if least < cost * (1 - _EQUAL):
                    gains.append((least - cost, job))
            for _, job in sorted(gains):
                had = self._lift(job)
                self._choose(job, self._free)
                if self._costs[job] < had[1] * (1 - _EQUAL):
                    changed.append((job, had))
                    gaining = True
                else:
                    self._lift(job)
                    self._put(job, *had)
        return changed

    def _least(self, job: int, within: int, across: int) -> float:
        """Return a bound of the cost that a job could have by free devices beside its own.

        Args:
            within: Most free devices of a node.
            across: Most free devices across nodes.
        """
        parts, free = self.parts[job], self._nodes.free
        for node, count in parts:
            within = max(within, free[node] + count)
            across += count if len(parts) == 1 else count + free[node]
        return min(_up_to(self._free.within[job], within)[1], _up_to(self._free.across[job], across)[1])

    def _ways(self, job: int) -> list[set[int]]:
        """Return sets of jobs without which a job would have room, the most promising ones first."""
        choices, its, sizes = self._priced, self._jobs[job], self._nodes.sizes
        (number, least), (number_across, least_across) = choices.within[job][-1], choices.across[job][-1]
        if choices.stays[job] <= choices.moves[job]:
            return [self._in_the_way(job, its.parts, spans=len(its.parts) > 1)]
        if least <= least_across:
            ways = [
                self._in_the_way(job, ((node, number),)) for node, size in enumerate(sizes) if size >= number
            ]
            return sorted(ways, key=self._losses)
        whole = [self._in_the_way(job, ((node, size),), spans=True) for node, size in enumerate(sizes)]
        room = 0
        ways = [set[int]()]
        for node in sorted(range(len(sizes)), key=lambda node: self._losses(whole[node]) / sizes[node]):
            if room >= number_across:
                break
            ways.append(ways[-1] | whole[node])
            room += sizes[node]
        return ways[::-1]

    def _in_the_way(self, job: int, parts: Parts, *, spans: bool = False) -> set[int]:
        """Return jobs without which a job would have room for its parts, those that lose least by devices."""
        way: set[int] = set()
        for node, count in parts:
            others = self._nodes.jobs[node]
            free = self._nodes.free[node] + others.get(job, 0)
            rivals = others.keys() - {job}
            for other in sorted(rivals, key=lambda other: (self._loss(other) / others[other], other)):
                if free < count or (spans and self._nodes.excludes(self.parts[other])):
                    way.add(other)
                    free += others[other]
        return way

    def _losses(self, jobs: set[int]) -> float:
        return sum(self._loss(job) for job in sorted(jobs))

    def _try(self, job: int, way: set[int]) -> bool:
        """Place a job and then those in its way again, and keep that if the sum of costs is less."""
        before = self.total()
        had = {other: self._lift(other) for other in sorted(way | {job})}
        self._choose(job, self._priced)
        self._place(sorted(way))
        for other, its in self._fill():
            had.setdefault(other, its)
        if self.total() < before * (1 - _EQUAL):
            return True
        for other in had:
            self._lift(other)
        for other, its in had.items():
            self._put(other, *its)
        return False


def _up_to(least: list[tuple[int, float]], limit: int) -> tuple[int, float]:
    return least[min(limit, len(least) - 1)]


def _number(parts: Parts) -> int:
    return sum(count for _, count in parts)
