"""The loop of a simulation: jobs train for an interval, then the policy gives out the devices."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace

from lab.simulator.applications import Application
from lab.simulator.capacity import Capacity
from lab.simulator.record import Life
from lab.simulator.rules import Rules
from lab.simulator.training import SimulatedJob
from lab.simulator.workloads import Arrival
from scheduler.allocation import Allocation, Placement
from scheduler.cluster.events import (
    Add,
    Decide,
    Decided,
    Drain,
    Ended,
    Event,
    JobRequest,
    NodeJoined,
    NodeLost,
    Reported,
    Submitted,
    Suspend,
    Suspended,
    Tick,
    WorkerGone,
    WorkerJoined,
)
from scheduler.cluster.machine import ClusterMachine
from scheduler.job import Job
from scheduler.nodes import Cluster
from scheduler.policies.base import Policy

_FACTS = tuple(field.name for field in fields(Job))


def simulate(
    arrivals: Sequence[Arrival],
    applications: Mapping[str, Application],
    policy: Policy,
    cluster: Cluster,
    rules: Rules,
    capacity: Capacity | None = None,
) -> list[Life]:
    """Simulate all jobs to their end, and return their lives in the order of submission.

    Of jobs that come at one time the earlier among the arrivals is the first. The policy is a new one, for
    this simulation alone; without a capacity all nodes are there, always (ValueError: the policy gives away
    what the cluster does not have, or devices of two kinds to one job).
    """
    arrivals = sorted(arrivals, key=lambda arrival: arrival.submitted)
    check_arrivals(arrivals, applications, policy, cluster)
    jobs = [SimulatedJob(arrival, applications[arrival.application], rules, policy) for arrival in arrivals]
    waiting = jobs[::-1]  # the next to arrive is the last
    present: list[SimulatedJob] = []
    held: dict[str, Placement] = {}  # by the names of the jobs that are present
    live = _LiveCluster(policy, rules.interval)
    now = 0
    while waiting or present:
        slowed = _sharing(held) if rules.interference else ()
        lost = {} if capacity is None else capacity.lost(now, now + rules.interval)
        for job in present:
            name = job.life.name
            ends = [int(lost[node]) for node, _ in held[name] if node in lost]
            until = min(ends, default=now + rules.interval)
            job.advance(now, until - now, rules.interference if name in slowed else 0.0)
            if ends and job.life.ended is None:
                job.lose_devices(until)
                held[name] = ()
        now += rules.interval
        present = [job for job in present if job.life.ended is None]
        while waiting and waiting[-1].life.submitted <= now:
            present.append(waiting.pop())
        there = cluster if capacity is None else _part(cluster, capacity, now, rules.notice)
        seen = {job.life.name: job.seen(now, cluster.node_sizes) for job in present}
        allocation = live.play_round(now, seen, there, lost)
        for job in present:
            name, placement = job.life.name, allocation[job.life.name]
            if placement != held.get(name, ()):
                job.place(placement, now, _kind(name, placement, cluster))
        held = {job.life.name: allocation[job.life.name] for job in present}
    return [job.life for job in jobs]


class _LiveCluster:
    """The machine of a live cluster, and an executor that does at once what it asks for."""

    def __init__(self, policy: Policy, interval: int) -> None:
        self._policy = policy
        self._machine = ClusterMachine(interval, by_rounds=True)
        self._nodes = Cluster(())  # in the order in which the policy goes through them

    def play_round(
        self, now: int, jobs: Mapping[str, Job], there: Cluster, lost: Iterable[str]
    ) -> Allocation:
        """Have the policy decide, and return what jobs, those that have not ended, have then.

        The nodes that are there can be given out; those that were lost since the last round may be there
        again.
        """
        known = self._machine.jobs
        for name, job in list(known.items()):  # the machine forgets some that have ended
            if name not in jobs and job.state != "ended":
                self._tell(now, Ended(name, job.attempt, "done"))
        gone = {name for name in self._machine.nodes if name not in there.by_name}.union(lost)
        hit = [name for name, job in known.items() if any(its.node in gone for its in job.leases.values())]
        for name in gone:
            self._tell(now, NodeLost(name))
        for name in hit:  # whatever it has elsewhere, it has to begin again
            self._tell(now, Suspended(name, known[name].attempt))
        self._nodes = there
        for node in there.nodes:
            if node.name not in self._machine.nodes:
                self._tell(now, NodeJoined(node))
        for name, seen in jobs.items():
            if name not in known:
                self._tell(now, Submitted(JobRequest(name, 1)))  # what it can use is reported
            self._tell(now, Reported(name, {field: getattr(seen, field) for field in _FACTS}))
        self._tell(now, Tick())
        target = self._machine.target
        for name in jobs:
            devices = Counter(lease.node for lease in known[name].leases.values())
            assert devices == Counter(dict(target.get(name, ()))), (name, devices, target.get(name))
        return Allocation(target)

    def _tell(self, now: int, event: Event) -> None:
        events = deque([event])
        while events:
            for action in self._machine.handle(now, events.popleft()):
                match action:
                    case Decide(number, at):
                        allocation = self._policy.allocate(replace(at, cluster=self._nodes))
                        allocation.check(self._nodes)
                        events.append(Decided(number, allocation.placements))
                    case Add(name, attempt, worker):
                        events.append(WorkerJoined(name, attempt, worker))
                    case Drain(name, attempt, worker):
                        events.append(WorkerGone(name, attempt, worker))
                    case Suspend(name, attempt):
                        events.append(Suspended(name, attempt))


def _part(cluster: Cluster, capacity: Capacity, now: int, notice: int) -> Cluster:
    """Return the nodes that are there, and are not known to be lost."""
    names = capacity.at(now) - capacity.lost(now, now + notice).keys()
    return Cluster(tuple(node for node in cluster.nodes if node.name in names))


def _sharing(held: Mapping[str, Placement]) -> set[str]:
    """Return the names of jobs that span nodes and share one of them with another that does."""
    spanning = {name: {node for node, _ in its} for name, its in held.items() if len(its) > 1}
    parts = Counter(node for nodes in spanning.values() for node in nodes)
    return {name for name, nodes in spanning.items() if any(parts[node] > 1 for node in nodes)}


def _kind(name: str, placement: Placement, cluster: Cluster) -> str:
    """Return the kind of a placement's devices, of the cluster's first node's if there are none."""
    kinds = {cluster.by_name[node].kind for node, _ in placement} or {cluster.kinds[0]}
    if len(kinds) > 1:
        raise ValueError(f"job {name!r} was given devices of several kinds: {', '.join(sorted(kinds))}")
    return kinds.pop()


def check_arrivals(
    arrivals: Sequence[Arrival], applications: Mapping[str, Application], policy: Policy, cluster: Cluster
) -> None:
    """Check that jobs can be simulated: unlike names, known models, devices and batches that exist."""
    names = [arrival.name for arrival in arrivals]
    if len(set(names)) < len(names):
        raise ValueError(f"two jobs are called {next(name for name in names if names.count(name) > 1)!r}")
    for arrival in arrivals:
        if (model := applications.get(arrival.application)) is None:
            known = ", ".join(sorted(applications))
            raise ValueError(
                f"job {arrival.name!r} trains {arrival.application!r}; the applications are {known}"
            )
        if policy.users_choose_devices and arrival.devices > cluster.devices:
            raise ValueError(
                f"job {arrival.name!r} asks for {arrival.devices} devices; the cluster has {cluster.devices}"
            )
        if policy.users_choose_batch and not model.initial <= arrival.batch <= model.largest:
            raise ValueError(
                f"job {arrival.name!r} asks for batches of {arrival.batch} samples; {model.name} was "
                f"measured with {model.initial} to {model.largest}"
            )
