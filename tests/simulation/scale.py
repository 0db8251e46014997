"""What thousands of workers of one job cost the manager: `python -m tests.simulation.scale WORKERS`.

The manager, its state file, and the workers' memberships with their clients and heartbeats are the product's
own; the workers compute nothing, and have no parameter server. The manager's CPU time is that of its turns on
the virtual clock, which itself does not pass meanwhile. Left out is what kernels do for sockets and disks.
"""

import argparse
import cProfile
import gc
import itertools
import logging
import pstats
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import greenlet

from tests.simulation.network import Loop
from tests.simulation.product import product
from tests.simulation.world import World

_SHARE = 8  # samples of a worker in an even split
_PACES = (0.8, 1.0)  # seconds that workers take for as many, from and to
_SECONDS = 300.0  # in which each phase must have ended
_JOB = "scale"


@dataclass(frozen=True)
class Cost:
    """What a phase of a job has cost its manager."""

    phase: str
    workers: int  # at its end
    iterations: int  # that were completed in it
    virtual: float  # seconds until it was over
    loop: float  # seconds of CPU of the manager's event loop
    others: float  # those of its other threads, as the one that writes the state

    def __str__(self):
        return (
            f"{self.phase}: {self.workers} workers, {self.iterations} iterations in {self.virtual:.2f} s; "
            f"CPU {self.loop:.2f} s in the event loop, {self.others:.2f} s in other threads; "
            f"{1e6 * self.loop / self.workers / max(1, self.iterations):.0f} us a worker and iteration"
        )


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

    def go_on(self, iterations):
        """Let time pass until so many iterations are complete of which all workers have a part."""
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
            return self.errors or (first and self.job.iterations.first_open >= first[0] + iterations)

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


class Meter:
    """Context manager that measures the CPU time of a process's turns.

    Attributes:
        seconds: Those of its first thread, and those of all others.
    """

    def __init__(self, world, process, profiles=False):
        self._world, self._process = world, process
        self._began, self._is_loop = None, False
        self.seconds = {True: 0.0, False: 0.0}
        self.profile = cProfile.Profile() if profiles else None

    def __enter__(self):
        self._hub = greenlet.getcurrent()
        greenlet.settrace(self._trace)
        return self

    def __exit__(self, *error):
        greenlet.settrace(None)

    def _trace(self, event, switched):
        if self._began is not None:
            if self.profile is not None:
                self.profile.disable()
            self.seconds[self._is_loop] += time.process_time() - self._began
            self._began = None
        target = switched[1]
        if target is not self._hub and self._world.running is self._process:
            self._is_loop = target is self._process.threads[0]
            self._began = time.process_time()
            if self.profile is not None:
                self.profile.enable()


def phases(iterations, joins, deaths):
    """Yield the phases of a job: what each is called, what happens at its begin, and its iterations."""
    yield "start", lambda cluster: None, 1
    yield "steady", lambda cluster: None, iterations
    yield f"{joins} join", lambda cluster: cluster.start(joins), 1
    yield f"{deaths} die", lambda cluster: cluster.kill(deaths), 1
    yield f"{deaths} come back", lambda cluster: cluster.start(deaths), 1
    yield f"{deaths} are replaced", lambda cluster: (cluster.kill(deaths), cluster.start(deaths)), 1
    yield "another attempt", Cluster.begin_again, 1


def measure(workers, iterations=10, joins=0, deaths=0, profile=None):
    """Yield what each phase of a job costs its manager.

    Args:
        profile: Called with each phase's profile, if it is wanted.
    """
    gc.disable()  # a collection would look at the workers' objects in the manager's turns
    with tempfile.TemporaryDirectory() as folder, product(), World(1) as world:
        cluster = Cluster(world, workers, Path(folder))
        for name, begin, count in phases(iterations, joins, deaths):
            now, first = world.now, cluster.job.iterations.first_open if cluster.job else 0
            with Meter(world, cluster.manager, profile is not None) as meter:
                begin(cluster)
                cluster.go_on(count)
            if profile is not None:
                profile(meter.profile)
            done = cluster.job.iterations.first_open - first
            yield Cost(
                name, len(cluster.workers), done, world.now - now, meter.seconds[True], meter.seconds[False]
            )
            gc.collect()
    gc.enable()


def main():
    """Measure, and print a line for each phase."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.scale", description=__doc__)
    parser.add_argument("workers", type=int)
    parser.add_argument("--iterations", type=int, default=10, help="Those while nothing else happens.")
    parser.add_argument("--joins", type=int, default=300, help="Workers that join at once.")
    parser.add_argument("--deaths", type=int, default=300, help="Workers that are killed at once.")
    parser.add_argument("--profile", type=int, default=0, help="Print so many functions for each phase.")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)

    def show(profile):
        pstats.Stats(profile).sort_stats("tottime").print_stats(options.profile)

    for cost in measure(
        options.workers,
        options.iterations,
        options.joins,
        options.deaths,
        show if options.profile else None,
    ):
        sys.stdout.write(f"{cost}\n")
        sys.stdout.flush()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sys.stdout.write(f"most memory, workers included: {most:.2f} GiB\n")


if __name__ == "__main__":
    main()
