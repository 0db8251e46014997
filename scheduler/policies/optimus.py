"""Optimus: each further device goes to the job that it saves the most time (Peng et al., EuroSys 2018)."""

import heapq
from collections.abc import Callable
from typing import ClassVar

from scheduler.allocation import Allocation, devices
from scheduler.job import Job
from scheduler.policies.base import Policy, Round
from scheduler.policies.packing import free_devices, take


class Optimus(Policy):
    """Marginal gains, by remaining times that the jobs are told by an oracle (Optimus, 4.1).

    Each job has one device, in order of submission, while there are any. Then each further device goes to the
    job whose remaining time it shortens the most. Jobs with the number that they had stay where they are;
    the others are placed, those with few devices first.
    """

    users_choose_batch: ClassVar[bool] = True

    def allocate(self, at: Round) -> Allocation:
        """Return the placements of all jobs for the time until the next round.

        Raises:
            ValueError: A job's remaining time is not known.
        """
        numbers = self._numbers(at)
        kept = {
            name: at.allocation[name]
            for name, number in numbers.items()
            if devices(at.allocation[name]) == number
        }
        free = free_devices(at.cluster, kept)
        placed = dict(kept)
        for name, number in sorted(numbers.items(), key=lambda item: item[1]):
            if name not in kept:
                placed[name] = take(number, free)
        return Allocation(placed)

    def _numbers(self, at: Round) -> dict[str, int]:
        """Return the number of devices of each job."""
        left = at.cluster.devices
        numbers = {job.name: int(place < left) for place, job in enumerate(at.jobs)}
        left -= sum(numbers.values())
        # The largest gain first, and of equal ones the job submitted first.
        gains = [
            (-_gain(job, 1), place) for place, job in enumerate(at.jobs) if left and job.most_devices > 1
        ]
        heapq.heapify(gains)
        while left and gains and gains[0][0] < 0:
            place = gains[0][1]
            job = at.jobs[place]
            numbers[job.name] += 1
            left -= 1
            if numbers[job.name] < job.most_devices:
                heapq.heapreplace(gains, (-_gain(job, numbers[job.name]), place))
            else:
                heapq.heappop(gains)
        return numbers


def _gain(job: Job, number: int) -> float:
    """Return the seconds by which one more device than `number` brings a job's end nearer."""
    seconds = _seconds_left(job)
    return seconds(number) - seconds(number + 1)


def _seconds_left(job: Job) -> Callable[[int], float]:
    if job.seconds_left is None:
        raise ValueError(f"job {job.name!r} must have a known remaining time under Optimus")
    return job.seconds_left
