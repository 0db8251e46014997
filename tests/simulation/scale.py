"""Which functions of its manager a job of many workers calls, in each of the job's phases.

The manager, its state file, and the workers' memberships with their clients and heartbeats are the product's
own; the workers compute nothing, and have no parameter server.
"""

import contextlib
import cProfile
import gc
import itertools
import tempfile
from pathlib import Path

import greenlet

from tests.simulation.network import Loop
from tests.simulation.product import product
from tests.simulation.world import World

_SHARE = 8  # samples of a worker in an even split
_PACES = (0.8, 1.0)  # seconds that workers take for as many, from and to
_SECONDS = 300.0  # in which each phase must have ended
_JOB = "scale"


class Cluster:
    """A manager and a job's workers, in a world.

    Args:
        state: Folder of the manager's state.

    Attributes:
        manager: The manager's process.
        job: The job; None before a worker has joined.
        errors: Errors that ended workers, by name.
    """

    def __init__(self, world, workers, state):
        self._world = world
        self._names = itertools.count()
        self.manager, self.workers, self.errors = world.process("manager"), {}, {}
        self._members = {}  # of all that were started
        self._at = product().module("rpc.address").Address("127.0.0.1", 4300)
        many = 100 * workers  # far above all that a phase adds
        service, job = (product().module(f"batchsize_manager.{name}") for name in ("service", "job.config"))
        config = service.ManagerConfig(members=many, state=state, job=job.JobConfig(workers=workers))
        limits = product().module("rpc.limits").ServerLimits(connections=many, address_connections=many)
        self._spec = product().module("idl.plan").JobSpec(10_000 * _SHARE * workers, _SHARE * workers)
        loop, server, self._service = Loop(self.manager), product().module("rpc.server"), None

        async def begin():
            self._service = service.ManagerService(config)
            await server.Server(self._service, limits).start(self._at)

        loop.call_soon(lambda: loop.create_task(begin()))
        self.start(workers)

    @property
    def job(self):
        """The job; None before the first has joined."""
        jobs = [] if self._service is None else self._service.jobs
        return jobs[0].job if jobs else None

    def start(self, count):
        """Start so many workers."""
        for _ in range(count):
            name = f"w{next(self._names)}"
            self.workers[name] = process = self._world.process(name)
            self._world.spawn(process, lambda name=name: self._work(name))

    def kill(self, count):
        """Kill so many workers, those first that were started first."""
        for name in list(self.workers)[:count]:
            self.workers.pop(name).kill()

    def go_on(self):
        """Let time pass until an iteration is complete of which all workers have a part."""
        first = []

        def is_over():
            if self.job is None:
                return bool(self.errors)
            under_way = self.job.iterations.progress
            last = next(reversed(under_way), None)
            if (
                not first
                and last is not None
                and under_way[last].plan.assignments.keys() == self.workers.keys()
            ):
                first.append(last)
            return self.errors or (first and self.job.iterations.first_open > first[0])

        self._world.run(is_over, _SECONDS)
        failures = [*self.errors.items(), *self._world.failures]
        assert not failures, failures[0]

    def begin_again(self):
        """Have one worker ask for another attempt, as when a shard was started again."""
        name, process = next(iter(self.workers.items()))
        member = self._members[name]
        self._world.spawn(process, lambda: member.must_recover(member.attempt + 1))

    def _work(self, name):
        """Be a worker: join, and report iteration after iteration."""
        module = product().module
        wire, rewound = module("idl").batchsize_manager, module("idl.errors").RewoundError
        client = module("rpc.client").Client(
            wire.BatchSizeManager, self._at, "BatchSizeManager", silence=20.0
        )
        identity = module("idl").common.Identity(job=_JOB, worker=name, incarnation=f"{name}-1")
        member = self._members[name] = module("worker.membership").Membership(
            client, identity, 600.0, lambda lost: None, lambda error: self.errors.setdefault(name, error)
        )
        pace, report, error = self._world.random.uniform(*_PACES), module("idl.records").Report, None
        try:
            member.join(self._spec, module("idl.bounds").Bounds())
            member.start_heartbeat()
            while True:
                try:
                    if error is None:
                        part = member.next()
                    else:  # what the shards would say is what the manager knows
                        attempt = member.recover(max(member.attempt, error.attempt - 1))
                        part = member.rewind(attempt, self.job.iterations.first_open, None)
                        error = None
                    seconds = pace * part.count / _SHARE
                    self._world.sleep(seconds)
                    done = report(part.iteration, seconds, attempt=part.attempt, start=part.start)
                    member.report(done, lambda seconds=seconds: seconds)
                except rewound as again:
                    error = again
        except Exception as error:  # noqa: BLE001 - looked at after the phase
            self.errors[name] = error


@contextlib.contextmanager
def profiled(world, process):
    """Profile a process's turns; yield the profile."""
    profile, hub = cProfile.Profile(), greenlet.getcurrent()

    def trace(event, switched):
        profile.disable()
        if switched[1] is not hub and world.running is process:
            profile.enable()

    greenlet.settrace(trace)
    try:
        yield profile
    finally:
        greenlet.settrace(None)
        profile.disable()


def profiles(workers, count):
    """Yield each phase of a job, and the profile of what its manager has called in it.

    Args:
        workers: How many it begins with.
        count: How many of them join, die, come back, and are replaced at once.
    """
    gc.disable()  # a collection would look at the workers' objects in the manager's turns
    with tempfile.TemporaryDirectory() as folder, product(), World(1) as world:
        cluster = Cluster(world, workers, Path(folder))
        phases = {
            "start": lambda: None,
            "steady": lambda: None,
            "join": lambda: cluster.start(count),
            "die": lambda: cluster.kill(count),
            "come back": lambda: cluster.start(count),
            "are replaced": lambda: (cluster.kill(count), cluster.start(count)),
            "another attempt": cluster.begin_again,
        }
        for name, begin in phases.items():
            with profiled(world, cluster.manager) as profile:
                begin()
                cluster.go_on()
            yield name, profile
            gc.collect()
    gc.enable()
