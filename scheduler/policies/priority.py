"""Strict priorities with fixed numbers of devices: what VirtualFlow holds its fair sharing against."""

from typing import ClassVar

from scheduler.allocation import Allocation
from scheduler.policies.base import Policy, Round
from scheduler.policies.packing import free_devices, take


class Priority(Policy):
    """Jobs start in the order of descending weight, with the devices that they ask for (VirtualFlow, 6.4.1).

    Of equal weights the job submitted first comes first. A job that runs keeps its devices to its end. Unless
    jobs may pass, none starts before one of larger weight that waits, even if it alone would fit; a job that
    asks for more than the whole cluster does not count.
    """

    users_choose_devices: ClassVar[bool] = True
    users_choose_batch: ClassVar[bool] = True

    def __init__(self, *, passing: bool = False) -> None:
        """Make a policy.

        Args:
            passing: Let jobs that fit start before those that wait for more devices than are free.
        """
        self._passing = passing

    def allocate(self, at: Round) -> Allocation:
        """Return the placements of all jobs for the time until the next round.

        Raises:
            ValueError: A job asks for no number of devices.
        """
        placed = {job.name: at.allocation[job.name] for job in at.jobs}
        free = free_devices(at.cluster, at.allocation.placements)
        for job in sorted(at.jobs, key=lambda job: -job.weight):
            if job.devices is None:
                raise ValueError(f"job {job.name!r} must ask for a number of devices under priorities")
            if placed[job.name] or job.devices > at.cluster.devices:
                continue
            if job.devices <= sum(free.values()):
                placed[job.name] = take(job.devices, free)
            elif not self._passing:
                break
        return Allocation(placed)
