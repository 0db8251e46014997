"""The decisions about all jobs of a cluster: events in, actions out.

This module knows no engine, thread, file or clock. A policy says what each job shall have: the target. What
each job has is its leases, a device of a node for each worker. The machine leads leases to the target, and
gives a device out again only once the worker that had it was seen to be gone. Policies see the target, and
never the leases: one that saw a job that is still draining as a large one might let it keep what it was asked
to give.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from scheduler.allocation import Allocation, Placement
from scheduler.cluster.events import (
    Action,
    Add,
    Begin,
    Cancelled,
    Decide,
    Decided,
    Drain,
    End,
    Ended,
    Event,
    Held,
    How,
    JobRequest,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    PolicyChanged,
    Recovered,
    Reported,
    Say,
    Submitted,
    Suspend,
    Suspended,
    Tick,
    WorkerGone,
    WorkerJoined,
)
from scheduler.cluster.jobs import Lease, LiveJob
from scheduler.job import Job
from scheduler.nodes import Cluster, Node
from scheduler.policies.base import Round

_KEPT = 100  # jobs that have ended, and are remembered


class ClusterMachine:
    """All jobs of a cluster."""

    def __init__(self, interval: float = 60.0, by_rounds: bool = False) -> None:
        """Make a machine without jobs and nodes.

        Args:
            interval: Seconds from one round of the policy to the next.
            by_rounds: Ask the policy in its rounds alone, and not when something has changed.
        """
        self.jobs: dict[str, LiveJob] = {}  # in the order of submission, with the last that have ended
        self.nodes: dict[str, Node] = {}  # that are there, in the order in which they came
        self.leaving: set[str] = set()  # names of nodes that will go
        # What each job shall have, as decided last, less what is not there any more.
        self.target: dict[str, Placement] = {}
        self._interval = interval
        self._by_rounds = by_rounds
        self._next_round = interval if by_rounds else 0.0
        self._now = 0.0
        self._number = 0  # of the last question to the policy
        self._deciding = False  # whether it has yet to answer
        self._stale = False  # whether something has changed since the question
        self._capped: dict[str, int] = {}  # by job: devices that it can have at most, where it wants more
        self._actions: list[Action] = []

    @property
    def next_tick(self) -> float:
        """Return when the machine wants a `Tick`, in seconds on the cluster's clock."""
        retries = [time for job in self._living() for time in job.again.values() if time > self._now]
        return min([self._next_round, *retries])

    def handle(self, now: float, event: Event) -> list[Action]:
        """Take in an event, and return what is to be done once `saved` is kept."""
        self._actions = []
        now = max(now, self._now)  # the clock of an earlier start may have been ahead
        for job in self._living():
            job.attained += len(job.leases) * (now - self._now)
        self._now = now
        match event:
            case Reported():  # for the next round: it changes no lease
                if (reported := self.jobs.get(event.job)) is not None:
                    reported.facts.update(event.facts)
                return self._actions
            case Submitted() | Cancelled() | Held():
                self._hear_user(event)
            case NodeJoined() | NodeLeaving() | NodeLost():
                self._see_node(event)
            case WorkerJoined() | WorkerGone() | Suspended() | Ended():
                seen = self.jobs.get(event.job)
                # Of an attempt that is over, nothing counts.
                if seen is not None and seen.attempt == event.attempt and seen.has_processes:
                    self._see_job(seen, event)
            case PolicyChanged():
                self._interval, self._by_rounds = event.interval, event.by_rounds
                self._next_round = min(self._next_round, self._now + event.interval)
                self._ask_soon()
            case Decided():
                self._hear_policy(event)
            case Tick():
                if self._now >= self._next_round:
                    self._ask()
            case Recovered():
                self._recover(event)
        self._reconcile()
        return self._actions

    # -- what is kept

    def saved(self) -> dict[str, Any]:
        """Return all that is to outlive the machine's process, as JSON can hold it."""
        return {
            "jobs": [job.saved() for job in self.jobs.values()],
            "nodes": [asdict(node) for node in self.nodes.values()],
            "leaving": sorted(self.leaving),
            "target": {job: [list(part) for part in placement] for job, placement in self.target.items()},
            "interval": self._interval,
            "by_rounds": self._by_rounds,
            "next_round": self._next_round,
            "now": self._now,
            "number": self._number,
            "capped": self._capped,
        }

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> "ClusterMachine":
        """Return the machine that `saved` described, to be told `Recovered` before anything else."""
        machine = cls(saved["interval"], saved["by_rounds"])
        jobs = (LiveJob.restored(job) for job in saved["jobs"])
        machine.jobs = {job.request.name: job for job in jobs}
        machine.nodes = {node["name"]: Node(**node) for node in saved["nodes"]}
        machine.leaving = set(saved["leaving"])
        machine.target = {job: tuple(map(tuple, placement)) for job, placement in saved["target"].items()}
        machine._next_round, machine._now = saved["next_round"], saved["now"]
        machine._number, machine._capped = saved["number"], dict(saved["capped"])
        return machine

    # -- events

    def _hear_user(self, event: Submitted | Cancelled | Held) -> None:
        if isinstance(event, Submitted):
            self._hear_submission(event.request, event.attempt)
            return
        job = self.jobs.get(event.job)
        if job is None or job.state in ("ending", "ended"):
            return
        if isinstance(event, Held):
            if job.held != event.held:
                job.held = event.held
                self.target.pop(event.job, None)
                self._ask_soon()
        elif not job.has_processes:
            self._end(job, "cancelled", "by its user")
        else:
            job.state, job.how = "ending", "cancelled"
            job.drain_all()
            self.target.pop(event.job, None)
            self._actions.append(End(event.job, job.attempt))

    def _hear_submission(self, request: JobRequest, attempt: int) -> None:
        known = self.jobs.get(request.name)
        if known is not None and known.request == request:  # the user asks again, for want of an answer
            return
        if known is not None and (known.state != "ended" or known.request.owner != request.owner):
            self._say(f"{request.name}: there is another job of this name")
            return
        job = LiveJob(request, self._now, attempt=attempt)
        if known is not None:  # it goes on with what an earlier job of this name has left
            job.attempt, job.made = max(attempt, known.attempt), known.made
            del self.jobs[request.name]  # so that it comes last in the order of submission
        self.jobs[request.name] = job
        self._ask_soon()

    def _see_node(self, event: NodeJoined | NodeLeaving | NodeLost) -> None:
        if isinstance(event, NodeJoined):
            if event.node.name in self.nodes:
                return
            self.nodes[event.node.name] = event.node
        elif event.node not in self.nodes or (isinstance(event, NodeLeaving) and event.node in self.leaving):
            return
        elif isinstance(event, NodeLeaving):
            self.leaving.add(event.node)
        else:
            del self.nodes[event.node]
            self.leaving.discard(event.node)
            for job in self._living():
                job.forgive(event.node)
                lost = [worker for worker, lease in job.leases.items() if lease.node == event.node]
                for worker in lost:
                    del job.leases[worker]
                if lost:
                    self._say(f"{job.request.name} has lost {', '.join(lost)} with node {event.node}")
        # Jobs keep what they have elsewhere.
        self.target = {
            job: kept
            for job, placement in self.target.items()
            if (kept := tuple(part for part in placement if self._is_usable(part[0])))
        }
        self._ask_soon()

    def _see_job(self, job: LiveJob, event: WorkerJoined | WorkerGone | Suspended | Ended) -> None:
        match event:
            case WorkerJoined(worker=worker) if worker in job.leases:
                lease = job.leases[worker]
                job.forgive(lease.node)
                if lease.phase == "starting":
                    lease.phase = "running"
                if job.state == "starting":
                    job.state = "running"
                    job.started = self._now if job.started is None else job.started
            case WorkerGone(worker=worker, finished=finished):
                gone = job.leases.pop(worker, None)
                if finished and job.trains:
                    job.state = "ending"
                    self.target.pop(event.job, None)
                elif gone is not None and gone.phase == "starting":
                    job.back_off(gone.node, self._now)
            case Suspended():
                job.leases.clear()
                if job.state == "ending":
                    self._end(job, "cancelled", "by its user")
                    return
                if job.state != "suspending":  # by itself, so that what was decided has come to nothing
                    self.target.pop(event.job, None)
                job.state = "suspended"
                self._ask_soon()
            case Ended(how=how, reason=reason):
                self._end(job, how, reason)

    def _hear_policy(self, event: Decided) -> None:
        if not self._deciding or event.number != self._number:
            return
        self._deciding = False
        if event.placements is None:
            self._say(f"the policy has failed, and what it decided last stands: {event.error}")
        else:
            # Since the question, jobs may have ended, and nodes may have gone.
            target = {
                job: tuple((node, count) for node, count in placement if self._is_usable(node))
                for job, placement in event.placements.items()
                if job in self.jobs and self.jobs[job].counts
            }
            try:
                allocation = Allocation(target)
                allocation.check(self._cluster())
            except ValueError as error:
                self._say(f"the policy's answer is impossible, and what it decided last stands: {error}")
            else:
                self.target = dict(allocation.placements)
        if self._stale:
            self._ask()

    def _recover(self, event: Recovered) -> None:
        self._deciding = True  # so that the policy is asked once, at the end
        there = {node.name for node in event.nodes}
        for name in [name for name in self.nodes if name not in there]:
            self._see_node(NodeLost(name))
        for node in event.nodes:
            self._see_node(NodeJoined(node))
        found: dict[str, set[str]] = {}
        for name, attempt, worker, on in event.workers:
            job = self.jobs.get(name)
            if job is None or attempt != job.attempt or not job.has_processes:
                self._say(f"{worker} of job {name} in attempt {attempt} is not known")
                continue
            found.setdefault(name, set()).add(worker)
            # One that was not saved has its device until it is gone.
            job.leases.setdefault(worker, Lease(on, "draining"))
        for name, job in self.jobs.items():
            if job.has_processes:
                known = found.get(name, ())
                job.leases = {
                    worker: lease
                    for worker, lease in job.leases.items()
                    if worker in known or lease.phase != "running"
                }
                self._repeat(name, job)
        self._deciding = False
        self._ask()

    def _repeat(self, name: str, job: LiveJob) -> None:
        """Ask again for all that was asked for and is not seen to be done."""
        # Where it has ended, or is about to, this asks how; it may not have arrived.
        self._actions.append(Begin(name, job.attempt))
        if job.state == "suspending":
            self._actions.append(Suspend(name, job.attempt))
        elif job.how == "cancelled":
            self._actions.append(End(name, job.attempt))
        if job.trains:
            for worker, lease in job.leases.items():
                if lease.phase == "draining":
                    self._actions.append(Drain(name, job.attempt, worker))
                else:
                    self._actions.append(Add(name, job.attempt, worker, lease.node))

    # -- the policy

    def _ask_soon(self) -> None:
        """Ask the policy since something has changed, unless it is asked in its rounds alone."""
        if not self._by_rounds:
            self._ask()

    def _ask(self) -> None:
        """Ask the policy; where it has yet to answer, once more when it has."""
        self._next_round = self._now + self._interval
        self._stale = self._deciding
        if self._deciding:
            return
        cluster = self._cluster()
        jobs = [self._seen(job, cluster) for job in self._living() if job.counts]
        if not jobs or not cluster.nodes:
            return
        self._number += 1
        self._deciding = True
        self._actions.append(Decide(self._number, Round(self._now, jobs, cluster, Allocation(self.target))))

    def _seen(self, job: LiveJob, cluster: Cluster) -> Job:
        name, asked = job.request.name, job.request.devices
        # Behind one that asks for more than there is, others would wait for ever under some policies.
        most = max(1, min(asked, cluster.devices))
        if most < asked and self._capped.get(name) != most:
            self._say(f"{name} asks for {asked} devices: the cluster has {cluster.devices} now")
            self._capped[name] = most
        elif most == asked:
            self._capped.pop(name, None)
        seen: dict[str, Any] = {
            "name": name,
            "submitted": job.submitted,
            "age": self._now - job.submitted,
            "weight": job.request.weight,
            "attained": job.attained,
            "restarts": max(0, job.attempt - 1),
            "paused": job.state == "starting" and bool(job.leases),
            "most_devices": most,
            "devices": most,
            "batch": job.request.batch,
        }
        return Job(**(seen | job.facts))

    # -- towards the target

    def _reconcile(self) -> None:
        """Drain what the target does not name, give out what is free, and suspend who is in others' way."""
        living = {job.request.name: job for job in self._living()}
        held = Counter(lease.node for job in living.values() for lease in job.leases.values())
        free = Counter({name: node.devices - held[name] for name, node in self.nodes.items()})
        excess = {name: self._excess(name, job) for name, job in living.items()}
        for name, job in living.items():
            if job.trains:
                self._release(name, job, excess[name])
        if self._deciding:  # the target may be about to change
            return
        for name, job in living.items():
            if job.counts and job.state != "suspending":
                self._grow(name, job, free)
        for name, job in living.items():
            if job.trains and self._is_stuck(name, job, excess, living):
                job.state = "suspending"
                job.drain_all()
                self._actions.append(Suspend(name, job.attempt))

    def _excess(self, name: str, job: LiveJob) -> list[str]:
        """Return the workers beyond the target: on each node first those that start, then the youngest."""
        left = Counter(dict(self.target.get(name, ())))
        beyond = []
        for worker, lease in sorted(job.kept.items(), key=lambda its: its[1].phase == "starting"):
            left[lease.node] -= 1
            if left[lease.node] < 0:
                beyond.append(worker)
        return beyond[::-1]

    def _release(self, name: str, job: LiveJob, excess: Iterable[str]) -> None:
        """Drain what is too much, but for the last worker that trains, or is about to where none does."""
        for worker in excess:
            others = [lease for other, lease in job.kept.items() if other != worker]
            if job.leases[worker].phase == "running":
                others = [lease for lease in others if lease.phase == "running"]
            if others:
                job.leases[worker].phase = "draining"
                self._actions.append(Drain(name, job.attempt, worker))

    def _grow(self, name: str, job: LiveJob, free: Counter[str]) -> None:
        """Make workers where the target names more devices than the job has, and some are free."""
        wanted = Counter(dict(self.target.get(name, ())))
        wanted.subtract(lease.node for lease in job.kept.values())
        places = [
            node
            for node, count in wanted.items()
            if job.again.get(node, 0.0) <= self._now
            for _ in range(min(count, free[node]))
        ]
        if places and not job.has_processes:
            job.state = "starting"
            job.attempt += 1
            self._actions.append(Begin(name, job.attempt))
        for node in places:
            worker = f"w{job.made}"
            job.made += 1
            free[node] -= 1
            job.leases[worker] = Lease(node)
            self._actions.append(Add(name, job.attempt, worker, node))

    def _is_stuck(
        self, name: str, job: LiveJob, excess: Mapping[str, list[str]], living: Mapping[str, LiveJob]
    ) -> bool:
        """Return whether a job must give up all that it has.

        It shall wait, or no device of those that it shall have comes free before it gives up its own, as
        where two jobs change places.
        """
        if any(worker not in excess[name] for worker in job.kept):
            return False
        return not any(
            self._comes_free(node, excess, living) or job.again.get(node, 0.0) > self._now
            for node, _ in self.target.get(name, ())
        )

    def _comes_free(self, node: str, excess: Mapping[str, list[str]], living: Mapping[str, LiveJob]) -> bool:
        """Return whether a device is on its way to be free: it drains, or will once another worker trains."""
        for name, job in living.items():
            on_node = [(worker, lease) for worker, lease in job.leases.items() if lease.node == node]
            if any(lease.phase == "draining" for _, lease in on_node):
                return True
            starts = any(
                lease.phase == "starting" and worker not in excess[name] for worker, lease in job.kept.items()
            )
            if starts and any(worker in excess[name] for worker, _ in on_node):
                return True
        return False

    # -- small things

    def _living(self) -> list[LiveJob]:
        """Return the jobs that have not ended."""
        return [job for job in self.jobs.values() if job.state != "ended"]

    def _is_usable(self, node: str) -> bool:
        return node in self.nodes and node not in self.leaving

    def _cluster(self) -> Cluster:
        return Cluster(tuple(node for name, node in self.nodes.items() if name not in self.leaving))

    def _end(self, job: LiveJob, how: How, reason: str) -> None:
        job.state, job.how, job.reason, job.ended = "ended", how, reason, self._now
        job.leases.clear()
        self.target.pop(job.request.name, None)
        self._capped.pop(job.request.name, None)
        ended = [name for name, other in self.jobs.items() if other.state == "ended"]
        for name in ended[:-_KEPT]:
            del self.jobs[name]
        self._ask_soon()

    def _say(self, text: str) -> None:
        self._actions.append(Say(text))
