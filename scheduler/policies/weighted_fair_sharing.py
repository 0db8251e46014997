"""VirtualFlow's elastic weighted fair sharing: jobs are resized by weights (Or et al., MLSys 2022)."""

import heapq
from collections.abc import Mapping, Sequence
from typing import ClassVar

from scheduler.allocation import Allocation, devices
from scheduler.job import Job
from scheduler.policies.base import Policy, Round
from scheduler.policies.resizing import resize


class WeightedFairSharing(Policy):
    """Shares in proportion to weights, up to what users ask for (VirtualFlow, 4.2, Algorithm 1).

    The running jobs expand; then jobs are admitted, those of large weight first, of equal ones the first
    submitted, until one would take devices from a job of larger weight. No job that runs is suspended.

    The paper leaves open what follows. To expand is to give each free device to the job that has the fewest
    for its weight, and nobody loses one; of equal ones to the job of larger weight, then to the one submitted
    first. A fair share is found in the same way, from one device for each job: whole devices' max-min
    fairness, with which a job that ends or comes moves no other's share the wrong way, as the largest
    remainder may. Jobs of larger weight than the one to admit start from what they have instead. So devices
    that they cannot use never wait, while a share that is fair without that could ask for some of theirs. A
    job is admitted if all have at least one device then.
    """

    users_choose_devices: ClassVar[bool] = True
    users_choose_batch: ClassVar[bool] = True

    def allocate(self, at: Round) -> Allocation:
        """Return the placements of all jobs for the time until the next round.

        Raises:
            ValueError: A job asks for no number of devices.
        """
        ranked = sorted(at.jobs, key=lambda job: -job.weight)  # of equal ones the first submitted
        running = [job for job in ranked if at.allocation[job.name]]
        total = at.cluster.devices
        had = {job.name: min(devices(at.allocation[job.name]), _demand(job)) for job in running}
        numbers = fair_shares(running, had, total)
        for job in ranked:
            if at.allocation[job.name]:
                continue
            least = {one.name: numbers[one.name] if one.weight > job.weight else 1 for one in running}
            least[job.name] = 1
            if sum(least.values()) > total:
                break
            running.append(job)
            numbers = fair_shares(running, least, total)
        return resize(numbers, at.allocation, at.cluster)


def fair_shares(jobs: Sequence[Job], least: Mapping[str, int], total: int) -> dict[str, int]:
    """Return the devices of each job: each further one goes where there are the fewest for the weight.

    Args:
        jobs: The jobs; of equal weights the first has the precedence.
        least: Devices that each has in any case, by name, at most what it asks for.
        total: Devices to give away, at least as many as that.

    Raises:
        ValueError: A job asks for no number of devices.
    """
    numbers = {job.name: least[job.name] for job in jobs}
    left = total - sum(numbers.values())
    places = [
        (numbers[job.name] / job.weight, -job.weight, place)
        for place, job in enumerate(jobs)
        if numbers[job.name] < _demand(job)
    ]
    heapq.heapify(places)
    while left and places:
        place = places[0][2]
        job = jobs[place]
        numbers[job.name] += 1
        left -= 1
        if numbers[job.name] < _demand(job):
            heapq.heapreplace(places, (numbers[job.name] / job.weight, -job.weight, place))
        else:
            heapq.heappop(places)
    return numbers


def _demand(job: Job) -> int:
    if job.devices is None:
        raise ValueError(f"job {job.name!r} must ask for a number of devices under weighted fair sharing")
    return job.devices
