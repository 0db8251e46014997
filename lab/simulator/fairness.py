"""Finish-time fairness: completion in the shared cluster against that on a fair share of it.

A job's fair share is a cluster of its own with 1/n of the devices, n being the average number of jobs that
contend for the shared one during the job's life. The ratio of the completion times is rho (Mahajan et al.,
Themis, NSDI 2020; Pollux, 5.3.1): below 1 the job was treated better than fairly, above 1 worse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.simulator.applications import Application
from lab.simulator.record import Life
from lab.simulator.rules import Rules
from lab.simulator.training import SimulatedJob
from lab.simulator.workloads import Arrival
from scheduler.nodes import Cluster
from scheduler.policies.base import Policy
from scheduler.policies.packing import free_devices, take


@dataclass(frozen=True, slots=True)
class FairShare:
    """A job's training on its fair share of a cluster."""

    contention: float  # average number of jobs, this one among them, that were present during its life
    devices: int  # devices of the share, of which the job may not be able to use all
    completion: int  # seconds from its submission to its end there

    def rho(self, life: Life) -> float:
        """Return the finish-time fairness; completion times below the clock's second count as one."""
        return max(life.completion, 1) / max(self.completion, 1)


def fair_shares(
    lives: Sequence[Life],
    arrivals: Sequence[Arrival],
    applications: Mapping[str, Application],
    policy: Policy,
    cluster: Cluster,
    rules: Rules,
) -> list[FairShare]:
    """Return each job's training on its fair share, in the order of the lives; arrivals may be in any order.

    Where there are several kinds of devices, the share has a part of each, and the job trains on the kind on
    which it ends first. The policy that shared the cluster says which of devices and batch are the users'
    choice.
    """
    by_name = {arrival.name: arrival for arrival in arrivals}
    shares = []
    kinds = [Cluster(tuple(node for node in cluster.nodes if node.kind == kind)) for kind in cluster.kinds]
    for life, present in zip(lives, presence(lives), strict=True):
        age = max(life.completion, 1)
        arrival = by_name[life.name]
        application = applications[arrival.application]
        ends = []
        for part in kinds:
            devices = -(-part.devices * age // present)  # in floats the ceiling may be one more
            ends.append((isolated_completion(arrival, application, devices, policy, part, rules), devices))
        completion, devices = min(ends)
        shares.append(FairShare(present / age, devices, completion))
    return shares


def presence(lives: Sequence[Life]) -> list[int]:
    """Return the sum of the seconds that each job is present during each one's life, at least 1.

    Divided by a job's completion time it is the average number of jobs that contend during its life.
    """
    begins = np.array([life.submitted for life in lives], dtype=np.int64)
    ends = begins + np.array([life.completion for life in lives], dtype=np.int64)
    ends = np.maximum(ends, begins + 1)
    # overlaps: (jobs, jobs)
    overlaps = np.minimum(ends[:, None], ends) - np.maximum(begins[:, None], begins)
    return [int(seconds) for seconds in np.maximum(overlaps, 0).sum(axis=1)]


def isolated_completion(
    arrival: Arrival, application: Application, devices: int, policy: Policy, cluster: Cluster, rules: Rules
) -> int:
    """Return the seconds from a job's submission to its end with no other job, on as few nodes as possible.

    It starts in the first round after its submission, after a pause like that of every start, on all of the
    devices that it can use, and keeps them. No node is lost there, and no other job interferes. Devices are
    the most that it has, on nodes of one kind; a job whose user asks for more trains on these.
    """
    job = SimulatedJob(arrival, application, rules, policy)
    (kind,) = cluster.kinds
    now = max(-(-arrival.submitted // rules.interval), 1) * rules.interval
    job.place(take(min(devices, job.most_devices_of(kind)), free_devices(cluster, {})), now, kind)
    while job.life.ended is None:
        job.advance(now, rules.interval)
        now += rules.interval
    return job.life.completion
