"""The live cluster's machine in virtual time: workers need seconds to start and to leave, as was measured.

Where `simulation` charges a job a pause for each change, here a job that grows goes on meanwhile, one that
shrinks keeps the devices until its workers are gone, and only a suspension stops it, as on a live cluster.
"""

import heapq
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from batchsize_manager.policies.solver import split_evenly_in_time
from batchsize_manager.policies.step_times import StepTimeCurves, StepTimes
from idl.bounds import Bounds
from scheduler.cluster.events import (
    Action,
    Add,
    Decide,
    Decided,
    Drain,
    Ended,
    Event,
    JobRequest,
    NodeJoined,
    NodeLost,
    Submitted,
    Suspend,
    Suspended,
    Tick,
    WorkerGone,
    WorkerJoined,
)
from scheduler.cluster.history import Account, History, account, reasons
from scheduler.cluster.machine import ClusterMachine
from scheduler.nodes import Node
from scheduler.policies.base import Policy

_EVENTS = 100_000  # after which a simulation will not come to its end


@dataclass(frozen=True)
class SharedJob:
    """A job whose training is known: its batch is split so that all workers finish together."""

    request: JobRequest
    at: float  # seconds from the beginning to its submission
    iterations: int
    batch: int  # samples of an iteration
    times: Mapping[str, StepTimes]  # of a worker, by its node
    overhead: float = 0.0  # seconds of an iteration in which nothing is computed

    def seconds(self, nodes: Sequence[str]) -> float:
        """Return the seconds of an iteration with a worker on each of some nodes, at least one."""
        times = [self.times[node] for node in nodes]
        counts = split_evenly_in_time(StepTimeCurves(times), self.batch, [Bounds(1, self.batch)] * len(nodes))
        return self.overhead + max(one.time(count) for one, count in zip(times, counts, strict=True))


@dataclass(frozen=True)
class Delays:
    """What changes take, in seconds."""

    # From a worker's placement until it is a member, by node: of a job without members, and of one with some.
    start: Mapping[str, float]
    join: Mapping[str, float]
    leave: float = 0.0  # until a worker that was released, or has finished, is gone
    suspend: float = 0.0  # until a job's processes are gone
    loss: float = 0.0  # until a node's loss is seen; jobs with workers there stand still


@dataclass(frozen=True)
class NodeChange:
    """A node that comes, or is lost."""

    at: float  # seconds from the beginning
    node: Node
    lost: bool = False


@dataclass
class _Run:
    """A job that runs: where it is, and with whom."""

    job: SharedJob
    done: float = 0.0  # iterations
    members: dict[str, str] = field(default_factory=dict)  # nodes by worker
    until: float = 0.0  # it stands still
    _known: dict[tuple[str, ...], float] = field(default_factory=dict)  # seconds of an iteration, by nodes

    @property
    def _iteration(self) -> float:
        """Seconds of an iteration as it is, without an end if it has no member."""
        nodes = tuple(sorted(self.members.values()))
        if nodes not in self._known:
            self._known[nodes] = self.job.seconds(nodes) if nodes else inf
        return self._known[nodes]

    def end(self, now: float) -> float:
        """Return when it ends, if nothing changes."""
        left = self.job.iterations - self.done
        return max(now, self.until) + left * self._iteration if self.members else inf

    def pass_to(self, before: float, now: float) -> None:
        """Train from one moment to another."""
        self.done += max(0.0, now - max(before, self.until)) / self._iteration


class _Cluster:
    """Machine, policy and jobs, on one clock."""

    def __init__(self, jobs: Sequence[SharedJob], policy: Policy, delays: Delays) -> None:
        self._machine = ClusterMachine()
        self._policy = policy
        self._delays = delays
        self._runs = {job.request.name: _Run(job) for job in jobs}
        self._history = History(Path(os.devnull))  # empty, and never written
        self._now = 0.0
        self._numbers = itertools.count()
        # What comes: events of the machine's, and nodes that are lost but not seen to be.
        self._coming: list[tuple[float, int, Event | NodeChange]] = []

    def come(self, at: float, what: Event | NodeChange) -> None:
        heapq.heappush(self._coming, (at, next(self._numbers), what))

    def run(self) -> Account:
        for _ in range(_EVENTS):
            if all(name in self._machine.jobs for name in self._runs) and all(
                job.state == "ended" for job in self._machine.jobs.values()
            ):
                return account(self._history.lines, self._now)
            ends = {name: run.end(self._now) for name, run in self._runs.items()}
            first = min(ends, key=ends.__getitem__)
            coming = self._coming[0][0] if self._coming else inf
            if coming == inf and not self._machine.nodes:
                break
            at = min(coming, ends[first], self._machine.next_tick)
            self._pass_to(at)
            if at == coming:
                self._take(heapq.heappop(self._coming)[2])
            elif at == ends[first]:
                self._finish(first)
            else:
                self._tell(Tick())
        raise ValueError("the jobs do not come to an end on these nodes")

    def _pass_to(self, at: float) -> None:
        for run in self._runs.values():
            run.pass_to(self._now, at)
        self._now = at

    def _take(self, what: Event | NodeChange) -> None:
        if isinstance(what, NodeChange):
            if not what.lost:
                self._tell(NodeJoined(what.node))
                return
            seen = self._now + self._delays.loss
            for run in self._runs.values():
                if what.node.name in run.members.values():
                    run.members = {one: node for one, node in run.members.items() if node != what.node.name}
                    run.until = seen
            self.come(seen, NodeLost(what.node.name))
            return
        if isinstance(what, WorkerJoined):
            job = self._machine.jobs[what.job]
            lease = job.leases.get(what.worker)
            if job.attempt != what.attempt or lease is None or lease.phase != "starting":
                return  # it was released before, or its node was lost
            self._runs[what.job].members[what.worker] = lease.node
        self._tell(what)

    def _finish(self, name: str) -> None:
        """Have a job end, whose workers and services are gone a while later."""
        run = self._runs[name]
        run.members, run.done = {}, run.job.iterations
        self.come(self._now + self._delays.leave, Ended(name, self._machine.jobs[name].attempt, "done"))

    def _tell(self, event: Event) -> None:
        jobs, nodes = self._machine.jobs, self._machine.nodes
        why = reasons(event, jobs, {name: name for name in nodes})
        for action in self._machine.handle(self._now, event):
            self._do(action)
        there = {name: (name, node.devices) for name, node in nodes.items()}
        self._history.note(self._now, jobs, there, {name: why.get(name, "") for name in jobs})

    def _do(self, action: Action) -> None:
        match action:
            case Decide(number, at):
                self.come(self._now, Decided(number, self._policy.allocate(at).placements))
            case Add(job, attempt, worker, node):
                run = self._runs[job]
                delay = (self._delays.join if run.members else self._delays.start)[node]
                self.come(self._now + delay, WorkerJoined(job, attempt, worker))
            case Drain(job, attempt, worker):
                self._runs[job].members.pop(worker, None)
                self.come(self._now + self._delays.leave, WorkerGone(job, attempt, worker))
            case Suspend(job, attempt):
                self._runs[job].members.clear()
                self.come(self._now + self._delays.suspend, Suspended(job, attempt))


def simulate_delayed(
    jobs: Sequence[SharedJob], nodes: Sequence[NodeChange], policy: Policy, delays: Delays
) -> Account:
    """Return what jobs of known step times would have had on a live cluster.

    Args:
        jobs: The jobs, whose step times name all nodes.
        nodes: The nodes that come and are lost, those that are there from the beginning with time 0.
        policy: Decides, at once, whenever the live machine asks it.
        delays: What changes take.

    Raises:
        ValueError: The jobs do not come to an end on these nodes.
    """
    cluster = _Cluster(jobs, policy, delays)
    for node in nodes:
        cluster.come(node.at, node)
    for job in jobs:
        cluster.come(job.at, Submitted(job.request))
    return cluster.run()
