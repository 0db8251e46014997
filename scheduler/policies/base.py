"""The form of a scheduling policy: the jobs and the cluster of one moment in, an allocation out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from scheduler.allocation import Allocation
from scheduler.job import Job
from scheduler.nodes import Cluster


@dataclass(frozen=True, slots=True)
class Round:
    """A moment at which devices are given out."""

    now: float  # seconds on the cluster's clock
    jobs: Sequence[Job]  # those that have been submitted and have not ended, in order of submission
    cluster: Cluster  # the nodes that are there
    allocation: Allocation  # of these jobs on these nodes, as it stands


class Policy(ABC):
    """A rule by which devices are given to jobs. One object serves one cluster, and may have a memory."""

    # Whether a job has at most the number of devices that its user asks for.
    users_choose_devices: ClassVar[bool] = False
    users_choose_batch: ClassVar[bool] = False  # whether a job trains with the batch that its user asks for
    # Whether goodputs count for batches up to the one that a job's user asks for.
    users_limit_batch: ClassVar[bool] = False
    # Whether it serves clusters of several kinds of devices, with each job on one kind at a time.
    mixes: ClassVar[bool] = False
    interval: ClassVar[int] = 60  # seconds from one round to the next, as published

    @abstractmethod
    def allocate(self, at: Round) -> Allocation:
        """Return the placements of all jobs for the time until the next round."""
