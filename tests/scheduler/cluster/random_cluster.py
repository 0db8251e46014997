"""A cluster of values for the machine of a live one: nodes, processes and states, with faults at random.

It does what it is asked for, late and out of order, and knows the truth: when a process is made, its node
must have a device for it; a job must never have two sets of services, nor begin anew over a state.
"""

import heapq
import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass, field

from scheduler.allocation import Allocation
from scheduler.cluster.events import (
    Add,
    Begin,
    Cancelled,
    Decide,
    Decided,
    Drain,
    End,
    Ended,
    Held,
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
from scheduler.cluster.machine import ClusterMachine
from scheduler.nodes import Node
from scheduler.policies import POLICIES
from scheduler.policies.base import Policy

_UNTIL = 400.0  # seconds in which faults happen
_END = 6_000.0  # seconds after which all jobs must have ended
_SETTLED = 75.0  # seconds without a change after which jobs must have what was decided


class ViolationError(AssertionError):
    """Something that must never be."""


class Shuffled(Policy):
    """Gives devices to anybody, and takes them from anybody: the worst that a policy may do.

    Args:
        seed: Of what it decides.
        stays: Whether the same jobs on the same nodes have the same devices each time; then as many jobs as
            possible have one, and those that were led into each other's way stay there.
    """

    def __init__(self, seed, stays):
        self._draw, self._seed, self._stays = random.Random(seed), seed, stays

    def allocate(self, at):
        """Return any allocation that is allowed, or fail."""
        names, nodes = [job.name for job in at.jobs], [node.name for node in at.cluster.nodes]
        draw = random.Random(repr((self._seed, names, nodes))) if self._stays else self._draw
        if not self._stays and draw.random() < 0.05:
            raise ValueError("a policy's defect")
        slots = [node.name for node in at.cluster.nodes for _ in range(node.devices)]
        draw.shuffle(slots)
        draw.shuffle(names)
        most = {job.name: job.most_devices for job in at.jobs}
        if not self._stays:
            most = {name: draw.randint(0, number) for name, number in most.items()}
        given = {name: [] for name in names}
        while slots and (open_jobs := [name for name in names if len(given[name]) < most[name]]):
            for name in open_jobs[: len(slots)]:
                given[name].append(slots.pop())
        return Allocation({name: tuple(Counter(its).items()) for name, its in given.items()})


@dataclass
class Process:
    """A worker that exists."""

    node: str
    trains: bool = False
    drains: bool = False


@dataclass
class Truth:
    """A job as it is, whatever the machine takes it for."""

    work: float
    done: float = 0.0
    attempt: int = 0  # whose services exist; 0 for none
    last: int = 0  # attempt that was begun last
    up: bool = False  # whether its services listen
    closing: bool = False
    processes: dict[str, Process] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)  # workers that are never made again
    results: dict[int, Ended | Suspended] = field(default_factory=dict)  # of attempts, on disk


class RandomCluster:
    """The cluster, who carries out what the machine asks for, and their clock."""

    def __init__(self, seed, machine=ClusterMachine, jobs=5, faults=True, policies=None, fenced=True):
        """Make a cluster with nodes and jobs that come within the first minutes.

        Args:
            seed: Of all that is random.
            machine: The class of the machine.
            jobs: Number of jobs.
            faults: Whether anything happens but jobs and their ends.
            policies: Functions that make policies; None for some at random.
            fenced: Whether a job's controller refuses workers that are over.
        """
        self.draw = random.Random(seed)
        named = [POLICIES[name] for name in ("weighted_fair_sharing", "priority", "tiresias")]
        made = [lambda stays=stays: Shuffled(seed, stays) for stays in (False, True)]
        self.policies = policies or self.draw.sample(named + made, self.draw.choice((1, 5)))
        self.policy = self.policies[0]()
        self.kind, self.faults, self.fenced = machine, faults, fenced
        self.machine = machine(self.draw.choice((20.0, 60.0)))
        self.first = self.disk = json.dumps(self.machine.saved())
        self.now, self.numbers, self.queue = 0.0, itertools.count(), []
        self.nodes, self.truth, self.cancelled = {}, {}, set()
        self.counts = Counter()
        self.record = []  # times, what the machine was restored from or told, and what it asked for
        self.settled = None, 0.0  # what must not change, and since when it has not
        for _ in range(self.draw.randint(2, 4)):
            self.later(self.draw.uniform(0, 5), self.join_node)
        for number in range(jobs):
            request = JobRequest(f"j{number}", self.draw.randint(1, 5), self.draw.choice((1.0, 2.0, 5.0)))
            self.truth[request.name] = Truth(self.draw.uniform(20, 300))
            self.later(self.draw.uniform(0, _UNTIL / 2), self.submit, request)
        if faults:
            self.later(self.draw.uniform(5, 30), self.befall)
        self.later(1.0, self.pass_second)

    # -- time

    def later(self, seconds, call, *args, dies=False):
        """Call something later; what dies goes with the machine's process."""
        heapq.heappush(self.queue, (self.now + seconds, next(self.numbers), dies, call, args))

    def run(self):
        """Run until all jobs have ended, and check their ends."""
        while self.now < _END:
            jobs = self.machine.jobs
            if len(jobs) == len(self.truth) and all(job.state == "ended" for job in jobs.values()):
                break
            self.now, _, _, call, args = heapq.heappop(self.queue)
            call(*args)
        for name, truth in self.truth.items():
            job = self.machine.jobs.get(name)
            ended = job is not None and job.state == "ended"
            if not ended or (name not in self.cancelled and (job.how != "done" or truth.done < truth.work)):
                raise ViolationError(
                    f"{name} has not ended well: {job}, {truth}, {self.machine.target}, {self.nodes}"
                )

    def pass_second(self):
        """Let jobs train for a second, and the machine see what time it is."""
        for name, job in self.truth.items():
            trains = [process for process in job.processes.values() if process.trains]
            if job.up and not job.closing and trains:
                job.done += len(trains) ** 0.8
                if job.done >= job.work:
                    for worker in list(job.processes):
                        self.later(self.draw.uniform(0, 2), self.end_worker, name, job.attempt, worker, True)
                    self.close(name, job, Ended(name, job.attempt, "done"), 2.5)
                elif self.draw.random() < 0.1:
                    self.hear(Reported(name, {"speeds": {"cpu": self.draw.random()}}))
        if self.machine.next_tick <= self.now:
            self.tell(Tick())
        self.check_convergence()
        self.later(1.0, self.pass_second)

    # -- the machine

    def hear(self, event, least=0.0, most=1.5):
        """Let the machine be told later, perhaps twice, unless it dies before."""
        for _ in range(2 if self.draw.random() < 0.05 else 1):
            self.later(self.draw.uniform(least, most), self.tell, event, dies=True)

    def tell(self, event):
        """Have the machine handle an event, keep it, and do; any of these may be its process's last."""
        self.counts[type(event).__name__] += 1
        actions = self.machine.handle(self.now, event)
        self.check_actions(event, actions)
        dies = self.faults and self.now < _UNTIL and self.draw.random() < 0.004
        if dies and self.draw.random() < 0.3:  # before it has kept anything
            self.crash()
            return
        self.disk = json.dumps(self.machine.saved())
        self.record.append((self.now, event, repr(actions)))
        for action in actions[: self.draw.randint(0, len(actions)) if dies else None]:
            self.counts[type(action).__name__] += 1
            self.do(action)
        if dies:
            self.crash()

    def crash(self):
        """Kill the machine's process, and start it again."""
        self.counts["crash"] += 1
        # What it has sent may arrive yet, what it was about to hear does not.
        self.queue = [
            its for its in self.queue if not its[2] or (its[3] != self.tell and self.draw.random() < 0.3)
        ]
        heapq.heapify(self.queue)
        self.machine = self.kind.restored(json.loads(self.disk))
        self.policy = self.draw.choice(self.policies)()
        self.record.append((self.now, None, self.disk))
        workers = [
            (name, job.attempt, worker, process.node)
            for name, job in self.truth.items()
            for worker, process in job.processes.items()
        ]
        self.tell(Recovered(tuple(self.nodes.values()), tuple(workers)))

    def replay(self):
        """Check that the record leads to the same actions."""
        machine = self.kind.restored(json.loads(self.first))
        for now, event, said in self.record:
            if event is None:
                machine = self.kind.restored(json.loads(said))
            elif (actions := repr(machine.handle(now, event))) != said:
                raise ViolationError(f"the replay differs at {now}: {actions} for {said}")

    # -- what must hold

    def check_actions(self, event, actions):
        """Check what the machine has decided, by its own knowledge."""
        for action in actions:
            if isinstance(event, Recovered) or not isinstance(action, Add):
                continue
            if action.node not in dict(self.machine.target.get(action.job, ())):
                raise ViolationError(f"{action} is not what was decided: {self.machine.target}")
        held = Counter(its.node for job in self.machine.jobs.values() for its in job.leases.values())
        for node, count in held.items():
            if node not in self.machine.nodes or count > self.machine.nodes[node].devices:
                raise ViolationError(f"{count} leases on {node}: {self.machine.nodes.get(node)}")

    def check_convergence(self):
        """Check that jobs have what was decided, once nothing has happened for a while."""
        jobs = {name: job for name, job in self.machine.jobs.items() if job.state not in ("ending", "ended")}
        held = {
            name: Counter(its.node for its in job.leases.values()) for name, job in jobs.items() if job.leases
        }
        target = {name: Counter(dict(placement)) for name, placement in self.machine.target.items()}
        backs_off = any(time > self.now for job in jobs.values() for time in job.again.values())
        state = repr((sorted(target.items()), sorted(self.nodes), self.counts["crash"], sorted(jobs)))
        if state != self.settled[0] or backs_off:
            self.settled = state, self.now
        elif self.now - self.settled[1] > _SETTLED and held != target:
            raise ViolationError(f"at {self.now:.0f} jobs have {held}, where {target} was decided long ago")

    # -- what is done

    def do(self, action):
        """Have an action carried out, or the policy asked."""
        if isinstance(action, Decide):
            try:
                event = Decided(action.number, dict(self.policy.allocate(action.round).placements))
            except ValueError as error:
                event = Decided(action.number, None, str(error))
            took = self.draw.choice((0.0, 0.1, self.draw.uniform(0, 15)))
            self.hear(event, took, took)
        elif not isinstance(action, Say):
            self.later(
                self.draw.choice((0.0, 0.1, self.draw.uniform(0, 3))), self.carry_out, action, dies=True
            )

    def carry_out(self, action):
        """Let an action arrive at the job's controller."""
        name, attempt, job = action.job, action.attempt, self.truth[action.job]
        if attempt in job.results:
            self.hear(job.results[attempt])
        elif isinstance(action, Begin):
            self.begin(name, job, action)
        elif attempt > job.last:  # what begins the attempt is on its way
            self.later(0.5, self.carry_out, action, dies=True)
        elif attempt == job.attempt and not job.closing:
            match action:
                case Add(_, _, worker, node):
                    self.add(name, job, worker, node)
                case Drain(_, _, worker):
                    self.drain(name, attempt, worker)
                case Suspend():
                    self.close(name, job, Suspended(name, attempt))
                case End():
                    self.close(name, job, Ended(name, attempt, "cancelled"))
        elif isinstance(action, End) and attempt == job.attempt:  # whatever it was about to end with
            job.closing = False
            self.carry_out(action)

    def begin(self, name, job, action):
        """Start a job's services."""
        if action.attempt <= job.last:
            return
        if job.attempt:
            raise ViolationError(f"{name}: attempt {action.attempt} begins beside {job.attempt}")
        if job.last and action.attempt == 1:
            raise ViolationError(f"{name}: attempt {action.attempt} begins anew over a state")
        job.attempt = job.last = action.attempt
        job.up = job.closing = False
        self.later(self.draw.uniform(1, 8), self.come_up, name, job.attempt)

    def come_up(self, name, attempt):
        """Let services listen."""
        self.truth[name].up |= self.truth[name].attempt == attempt

    def add(self, name, job, worker, node):
        """Make a worker, which may come to nothing."""
        if (process := job.processes.get(worker)) is not None:
            if process.trains:
                self.hear(WorkerJoined(name, job.attempt, worker))
            return
        if self.fenced and worker in job.over:
            self.hear(WorkerGone(name, job.attempt, worker))
            return
        if node not in self.nodes or (self.faults and self.now < _UNTIL and self.draw.random() < 0.05):
            job.over.add(worker)
            self.hear(WorkerGone(name, job.attempt, worker))
            return
        job.processes[worker] = Process(node)
        used = sum(its.node == node for other in self.truth.values() for its in other.processes.values())
        if used > self.nodes[node].devices:
            raise ViolationError(f"{used} workers on {self.nodes[node]} at {self.now:.1f}")
        self.later(self.draw.uniform(1, 5), self.join_worker, name, job.attempt, worker)

    def join_worker(self, name, attempt, worker):
        """Let a worker train, once services listen."""
        job = self.truth[name]
        process = job.processes.get(worker)
        if job.attempt != attempt or process is None or process.drains or job.closing:
            return
        if not job.up:
            self.later(0.5, self.join_worker, name, attempt, worker)
            return
        process.trains = True
        self.hear(WorkerJoined(name, attempt, worker))

    def drain(self, name, attempt, worker):
        """Let a worker go, once the job can do without it."""
        job = self.truth[name]
        if job.attempt != attempt or job.closing:
            return
        if (process := job.processes.get(worker)) is None:
            job.over.add(worker)
            self.hear(WorkerGone(name, attempt, worker))
            return
        process.drains = True
        others = [
            its for other, its in job.processes.items() if other != worker and its.trains and not its.drains
        ]
        if process.trains and not others:
            self.later(1.0, self.drain, name, attempt, worker)
        else:
            self.later(self.draw.uniform(0.1, 3), self.end_worker, name, attempt, worker)

    def end_worker(self, name, attempt, worker, finished=False):
        """End a worker's processes."""
        job = self.truth[name]
        if job.attempt == attempt and job.processes.pop(worker, None) is not None:
            job.over.add(worker)
            self.hear(WorkerGone(name, attempt, worker, finished))

    def close(self, name, job, result, least=0.5):
        """End all processes of a job, write how its attempt has ended, and tell it."""
        job.closing = True
        self.later(self.draw.uniform(least, 6), self.finish, name, job.attempt, result)

    def finish(self, name, attempt, result):
        """Let an attempt have ended."""
        job = self.truth[name]
        if job.attempt == attempt and attempt not in job.results:
            job.over |= job.processes.keys()
            job.processes.clear()
            job.attempt, job.up = 0, False
            job.results[attempt] = result
            self.hear(result)

    # -- what happens

    def submit(self, request):
        """Submit a job, again and again until the machine knows it."""
        if request.name not in self.machine.jobs:
            self.tell(Submitted(request))
            self.later(1.0, self.submit, request)

    def join_node(self):
        """Let a node join, whose name no other has had."""
        node = Node(f"n{next(self.numbers)}", "cpu", self.draw.randint(1, 4))
        self.nodes[node.name] = node
        self.hear(NodeJoined(node))

    def kill_node(self, name):
        """Kill a node with all its processes, of which the machine hears in any order."""
        if self.nodes.pop(name, None) is None:
            return
        for job_name, job in self.truth.items():
            for worker in [worker for worker, process in job.processes.items() if process.node == name]:
                del job.processes[worker]
                job.over.add(worker)
                if self.draw.random() < 0.7:
                    self.hear(WorkerGone(job_name, job.attempt, worker), 0, 6)
        self.hear(NodeLost(name), 0, 6)
        self.later(self.draw.uniform(0, 40), self.join_node)

    def befall(self):
        """Let something happen, and again later."""
        if self.now > _UNTIL:
            for job in self.truth:
                self.tell(Held(job, False))
            if not self.nodes:
                self.join_node()
            return
        node = self.draw.choice([*self.nodes, "n-none"])
        job = self.draw.choice([*self.truth])
        kind = self.draw.choice(("kill", "kill", "leave", "join", "cancel", "hold", "policy", "crash"))
        self.counts[kind] += 1
        match kind:
            case "kill":
                self.kill_node(node)
            case "leave":
                self.hear(NodeLeaving(node), 0, 0.5)
                self.later(self.draw.uniform(1, 30), self.kill_node, node)
            case "join":
                self.join_node()
            case "cancel":
                self.cancelled.add(job)
                self.tell(Cancelled(job))
            case "hold":
                self.tell(Held(job, self.draw.random() < 0.5))
            case "policy":
                self.policy = self.draw.choice(self.policies)()
                self.tell(PolicyChanged(self.draw.choice((10.0, 30.0, 60.0)), self.draw.random() < 0.2))
            case "crash":
                self.crash()
        self.later(self.draw.uniform(3, 40), self.befall)
