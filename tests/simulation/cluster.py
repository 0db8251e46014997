"""A simulated job: real services and sessions, and faults that a seed chooses.

A job of least squares is trained by workers of unlike speed, while services and workers are killed, frozen,
cut off and started again. At its end, all workers that live must have the parameters of one process that took
the whole batches; one that was away when the others finished, those of an earlier step.
"""

import contextlib
import itertools
import logging
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.simulation.network import Loop
from tests.simulation.product import product
from tests.simulation.world import StalledError, World

_ITERATIONS = 40
_SPAN = 60.0  # seconds in which faults may begin
_EVERY = 1.0  # seconds between two faults, on average
_CALM_ITERATIONS = 10  # last iterations, without faults; without deaths of workers, twice as many
_SECONDS = 2_000.0  # seconds after which a job must have ended
_TOLERANCE = 1e-9  # largest difference of parameters, some of which are 4

KINDS = {
    "kill worker": (0.0, 3.0),
    "freeze worker": (0.1, 12.0),
    "cut": (0.0, 0.0),
    "hole": (0.0, 0.0),
    "slow link": (0.1, 5.0),
    "restart shard": (0.05, 2.0),
    "restart manager": (0.05, 2.0),
    "freeze shard": (0.1, 6.0),
    "freeze manager": (0.1, 6.0),
}
"""Kinds of faults: how many seconds they last at least and at most, a killed process until it is back."""


@dataclass(frozen=True)
class Fault:
    """A fault: when it begins, its kind, which of those that it can befall (0 to 1), and for how long."""

    at: float
    kind: str
    victim: float
    seconds: float

    def __str__(self):
        return f"{self.at:.1f} s: {self.kind} ({self.victim:.2f}) for {self.seconds:.1f} s"


@dataclass(frozen=True)
class Scenario:
    """A job and its faults."""

    seed: int
    workers: int
    shards: int
    policy: str
    lookahead: int
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, seed, kinds=tuple(KINDS)):
        """Return the scenario of a seed."""
        draw = random.Random(seed)
        faults, now = [], draw.expovariate(1 / _EVERY)
        job = (
            draw.choice((2, 3, 3, 4)),
            draw.choice((1, 2, 2, 3)),
            draw.choice(("even", "proportional", "learned")),
            draw.choice((0, 0, 2)),
        )
        while now < _SPAN:
            kind = draw.choice(kinds)
            faults.append(Fault(now, kind, draw.random(), draw.uniform(*KINDS[kind])))
            now += draw.expovariate(1 / _EVERY)
        return cls(seed, *job, tuple(faults))


@dataclass
class Outcome:
    """What came of a scenario."""

    scenario: Scenario
    fired: Counter = field(default_factory=Counter)  # faults by kind
    wrongs: list[str] = field(default_factory=list)  # what should not be, in words
    events: int = 0
    digest: int = 0
    seconds: float = 0.0  # of virtual time

    def __str__(self):
        fired = ", ".join(f"{count} {kind}" for kind, count in sorted(self.fired.items()))
        wrong = f" WRONG: {'; '.join(self.wrongs)}" if self.wrongs else ""
        return (
            f"seed {self.scenario.seed}: {self.seconds:.0f} s, {self.events} events ({self.digest:08x}), "
            f"{fired or 'no fault'}{wrong}"
        )


class _Job:
    """The processes of one scenario."""

    def __init__(self, world, folder, scenario, outcome):
        self._world = world
        self._scenario = scenario
        self._outcome = outcome
        self._draw = random.Random(scenario.seed + 1)
        self._names = itertools.count()
        self.ends, self.errors = {}, {}  # of workers: parameters and whether they are the last ones; errors
        self.workers = {}  # those that live, or have ended
        self.services = {}
        self._done = 0  # iterations
        self._operator = world.process("operator")
        problem = product().module("tests.scripts.train_least_squares")
        self._problem = problem
        address = product().module("rpc.address").Address
        job_config = product().module("batchsize_manager.job.config").JobConfig
        manager = product().module("batchsize_manager.service")
        self._manager_at = address("127.0.0.1", 4300)
        self._shards_at = [address("127.0.0.1", 4400 + number) for number in range(scenario.shards)]
        config = manager.ManagerConfig(
            scenario.policy,
            job=job_config(
                workers=scenario.workers,
                heartbeat=0.5,
                silence=4.0,
                report_timeout=120.0,
                lookahead=scenario.lookahead,
            ),
            state=folder / "manager",
        )
        self._make = {"manager": (lambda: manager.ManagerService(config), self._manager_at)}
        shard = product().module("ps.service").ParameterServerService
        shard_config = product().module("ps.config").ParameterServerConfig
        for number, at in enumerate(self._shards_at):
            own = shard_config(state=folder / f"ps-{number}", checkpoint_every=5)
            self._make[f"ps-{number}"] = (lambda own=own: shard(own), at)
        for name in self._make:
            self._serve(name)
        for _ in range(scenario.workers):
            self._start_worker()
        for fault in scenario.faults:
            world.at(fault.at, self._operator, self._befall, fault)

    @property
    def is_over(self):
        """Whether all workers have ended that live."""
        return all(name in self.ends or name in self.errors for name in self.workers)

    def _serve(self, name):
        make, address = self._make[name]
        process = self.services[name] = self._world.process(name)
        server = product().module("rpc.server")
        loop = Loop(process)

        async def begin():
            await server.Server(make()).start(address)

        loop.call_soon(lambda: loop.create_task(begin()))

    def _start_worker(self):
        name = f"w{next(self._names)}"
        process = self.workers[name] = self._world.process(name)
        pace, spread = self._draw.uniform(0.1, 0.6), random.Random(self._draw.random())
        session_module = product().module("worker.session")
        config = session_module.SessionConfig(
            self._manager_at,
            tuple(self._shards_at),
            worker=name,
            connect_timeout=60.0,
            barrier_timeout=600.0,
            silence=10.0,
        )

        def compute(session):
            share = session.assignment.count / self._problem.SPEC.total_batch_size
            self._world.sleep(pace * share * spread.uniform(0.8, 1.2))

        def train():
            session = None
            try:
                session = session_module.Session(config)
                for part in self._problem.go_through(session, _ITERATIONS, compute):
                    self._done = max(self._done, part.assignment.iteration)
                is_last = session.released is None
                self.ends[name] = session.exchange.parameters.copy(), is_last
            except Exception as error:  # noqa: BLE001 - looked at when all have ended
                self.errors[name] = error
            finally:
                if session is not None:
                    session.close()

        self._world.spawn(process, train)

    def _befall(self, fault):
        """Let a fault happen, if there is something that it can befall."""
        left = _ITERATIONS - self._done
        live = [
            process
            for name, process in self.workers.items()
            if not process.is_frozen and name not in self.ends and name not in self.errors
        ]
        if self.ends or self.errors or left <= _CALM_ITERATIONS or not live:
            return
        kind, _, part = fault.kind.partition(" ")
        if part == "worker" and (len(live) < 2 or (kind == "kill" and left <= 2 * _CALM_ITERATIONS)):
            return
        if part == "worker":
            victim = _of(live, fault.victim)
        elif part in ("shard", "manager"):
            services = [
                one for name, one in self.services.items() if (name == "manager") == (part == "manager")
            ]
            victim = _of(services, fault.victim)
            if victim.is_dead or victim.is_frozen:
                return
        else:
            links = [end for process in live for end in process.endpoints if end.socket is not None]
            if not links:
                return
            victim = _of(links, fault.victim)
        self._outcome.fired[fault.kind] += 1
        undo = getattr(self, f"_{kind}")(victim)
        if undo is not None:
            self._world.at(fault.seconds, self._operator, undo)

    def _kill(self, worker):
        worker.kill()
        del self.workers[worker.name]
        return lambda: None if self.ends else self._start_worker()

    def _freeze(self, process):
        process.freeze()
        return process.thaw

    def _restart(self, service):
        service.kill()
        return lambda: self._serve(service.name)

    def _cut(self, endpoint):
        endpoint.peer.reset()
        endpoint.reset()
        endpoint.arrive_end(ConnectionResetError("cut"))

    def _hole(self, endpoint):
        for end in endpoint.process.endpoints:
            end.is_hole = end.peer.is_hole = True

    def _slow(self, endpoint):
        endpoint.delay = endpoint.peer.delay = 0.5

        def undo():
            endpoint.delay = endpoint.peer.delay = 0.0

        return undo


def _of(choices, victim):
    return choices[int(victim * len(choices))]


def simulate(scenario):
    """Run a scenario to its end, and return what came of it."""
    outcome = Outcome(scenario)
    with (
        tempfile.TemporaryDirectory(prefix="evenpace-simulated-") as folder,
        product(),
        World(scenario.seed) as world,
    ):
        begin = world.now
        job = _Job(world, Path(folder), scenario, outcome)
        try:
            world.run(lambda: job.is_over, _SECONDS)
        except StalledError as error:
            outcome.wrongs.append(f"it does not end, {error}")
        outcome.events, outcome.digest, outcome.seconds = world.events, world.digest, world.now - begin
        versions = [job._problem.trained_alone(iterations) for iterations in range(_ITERATIONS + 1)]
    for name, error in job.errors.items():
        outcome.wrongs.append(f"{name} ends with {type(error).__name__}: {error}")
    for name, error in world.failures:
        outcome.wrongs.append(f"in {name}, {type(error).__name__}: {error}")
    if not any(is_last for _, is_last in job.ends.values()):
        outcome.wrongs.append("no worker has gone through all iterations")
    for name, (parameters, is_last) in job.ends.items():
        # Who was away when the others finished keeps what it had.
        wanted = versions[-1:] if is_last else versions
        if (difference := min(float(np.abs(parameters - one).max()) for one in wanted)) > _TOLERANCE:
            outcome.wrongs.append(f"{name} ends with parameters that differ by {difference:.1e}")
    return outcome


def shrink(scenario):
    """Return the scenario with as few faults as it takes to fail; the faults that stay keep their times."""
    faults = list(scenario.faults)
    size = max(1, len(faults) // 2)
    while size:
        for begin in range(0, len(faults), size):
            fewer = faults[:begin] + faults[begin + size :]
            smaller = Scenario(**{**vars(scenario), "faults": tuple(fewer)})
            if simulate(smaller).wrongs:
                faults = fewer
                break
        else:
            size //= 2
    return Scenario(**{**vars(scenario), "faults": tuple(faults)})


class _VirtualTimes(logging.Formatter):
    """Lines with the virtual time and the process."""

    def format(self, record):
        """Return a record's line."""
        world = World.current
        name = "" if world is None or world.running is None else world.running.name
        now = 0.0 if world is None else world.now
        return f"{now:10.4f} {name:>9} {record.levelname:7} {record.getMessage()}"


@contextlib.contextmanager
def virtual_log(stream):
    """Write the log of scenarios to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_VirtualTimes())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
