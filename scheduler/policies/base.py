"""The form of a scheduling policy: the jobs and the cluster of one moment in, an allocation out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from scheduler.allocation import Allocation
from scheduler.cluster import Cluster
from scheduler.job import Job


@dataclass(frozen=True, slots=True)
class Round:
    """A moment at which devices are given out.

    Attributes:
        now: Seconds on the cluster's clock.
        jobs: Those that have been submitted and have not ended, in order of submission.
        cluster: The nodes that are there.
        allocation: Of these jobs on these nodes, as it stands.
    """

    now: float
    jobs: Sequence[Job]
    cluster: Cluster
    allocation: Allocation


class Policy(ABC):
    """A rule by which devices are given to jobs. One object serves one cluster, and may remember what it did.

    Attributes:
        users_choose_devices: Whether a job has at most the number of devices that its user asks for.
        users_choose_batch: Whether a job trains with the batch that its user asks for.
        users_limit_batch: Whether goodputs count for batches up to the one that a job's user asks for.
        mixes: Whether it serves clusters of several kinds of devices, with each job on one kind at a time.
        interval: Seconds from one round to the next, as published.
    """

    users_choose_devices: ClassVar[bool] = False
    users_choose_batch: ClassVar[bool] = False
    users_limit_batch: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    interval: ClassVar[int] = 60

    @abstractmethod
    def allocate(self, at: Round) -> Allocation:
        """Return the placements of all jobs for the time until the next round."""
