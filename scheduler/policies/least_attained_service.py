"""Tiresias: jobs get the devices that they ask for, first those that had little (Gu et al., NSDI 2019)."""

from typing import ClassVar

from scheduler.allocation import Allocation, devices
from scheduler.job import Job
from scheduler.policies.base import Policy, Round
from scheduler.policies.packing import free_devices, take


class LeastAttainedService(Policy):
    """Discretised two-dimensional least attained service, with two queues (Tiresias, 3.2).

    A job enters the first queue, and goes to the end of the second, for good, once it has had a certain
    device time. Devices go to the jobs of the first queue, then to those of the second, in order; a job that
    no longer fits is passed over, and loses the devices that it had. Others keep theirs.
    """

    users_choose_devices: ClassVar[bool] = True
    users_choose_batch: ClassVar[bool] = True

    def __init__(self, threshold: float = 57_600.0) -> None:
        """Make a policy that has seen no job.

        Args:
            threshold: Device-seconds from which a job is in the second queue; 16 hours as published.
        """
        self._threshold = threshold
        self._second: list[str] = []

    def allocate(self, at: Round) -> Allocation:
        """Return the placements of all jobs for the time until the next round.

        Raises:
            ValueError: A job asks for no number of devices.
        """
        left = at.cluster.devices
        chosen = {}
        for job in self._queues(at):
            if job.devices is None:
                raise ValueError(f"job {job.name!r} must ask for a number of devices under Tiresias")
            if job.devices <= left:
                left -= job.devices
                chosen[job.name] = job.devices
        # A job that has come to ask for another number is placed again.
        kept = {
            name: at.allocation[name]
            for name, number in chosen.items()
            if devices(at.allocation[name]) == number
        }
        free = free_devices(at.cluster, kept)
        return Allocation(
            {name: kept[name] if name in kept else take(number, free) for name, number in chosen.items()}
        )

    def _queues(self, at: Round) -> list[Job]:
        """Move jobs to the second queue, and return the jobs of the first, then of the second."""
        jobs = {job.name: job for job in at.jobs}
        self._second = [name for name in self._second if name in jobs]
        self._second += [
            job.name for job in at.jobs if job.attained >= self._threshold and job.name not in self._second
        ]
        second = [jobs.pop(name) for name in self._second]
        return [*jobs.values(), *second]
