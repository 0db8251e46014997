"""A simulated job: real services and sessions, and faults that a seed chooses.

A job of least squares is trained by workers of unlike speed, while services and workers are killed, frozen,
cut off and started again, and operators change the job. At its end each batch must begin where the one before
it ends, and all workers that live have the parameters of one process that took these batches, in the attempt
in which the worker has finished; one that was released before, those of an earlier step.
"""

import contextlib
import dataclasses
import itertools
import logging
import math
import random
import sqlite3
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

from tests.simulation.disk import Disk
from tests.simulation.network import Loop
from tests.simulation.product import product
from tests.simulation.world import StalledError, World

ITERATIONS = 40
_SPAN = 60.0  # seconds in which faults may begin
EVERY = 1.0  # seconds between two faults, on average
_CALM_ITERATIONS = 10  # last iterations, without faults; without deaths of workers, twice as many
_SECONDS = 2_000.0  # seconds after which a job must have ended
_STANDSTILL = 100.0  # seconds without progress that no fault explains, but a wait for a time-out does
_TOLERANCE = 1e-9  # largest difference of parameters, some of which are 4
_MOST_WORKERS = 5
_OF_DISKS = {"fill", "fail", "stall"}  # kinds of faults for which checkpoints come later, or not at all
_SCHEDULE = {0: 16, 1: 24, 2: 10, 4: 16}  # samples of a batch by the first epoch that has them
_SIZES = 10, 48  # of a batch that a sizer chooses, or an operator; the least and the most

KINDS = {
    "kill worker": (0.0, 3.0),
    "freeze worker": (0.1, 12.0),
    "cut": (0.0, 0.0),
    "hole": (0.0, 0.0),
    "slow link": (0.1, 5.0),
    "part": (0.0, 0.0),
    "restart shard": (0.05, 2.0),
    "restart manager": (0.05, 2.0),
    "freeze shard": (0.1, 6.0),
    "freeze manager": (0.1, 6.0),
    **{f"crash {part}": (0.05, 2.0) for part in ("shard", "manager")},
    **{f"tear {part}": (0.05, 2.0) for part in ("shard", "manager")},
    **{f"fill {part}": (0.5, 10.0) for part in ("shard", "manager")},
    **{f"fail {part}": (0.0, 0.0) for part in ("shard", "manager")},
    **{f"flip {part}": (0.05, 2.0) for part in ("shard", "manager")},
    **{f"stall {part}": (0.1, 10.0) for part in ("shard", "manager")},
    **{f"jump {part}": (0.1, 20.0) for part in ("worker", "shard", "manager")},
    "start worker": (0.0, 0.0),
    "drain worker": (0.0, 3.0),
    "resize job": (0.0, 0.0),
    "pause job": (0.1, 10.0),
}
"""Kinds of faults: how many seconds they last at least and at most, a killed process until it is back.

A machine that crashes loses what it has not flushed to its disk. A process that is torn dies at one of its
next operations on the disk. A worker is parted from one of those that it is connected to, for some seconds.
A disk fills, fails once, stalls, or has a bit flipped that can be spared; a clock of the day jumps. The last
four are what operators do: workers are started and drained, the
batch gets another size, and the job is paused.
"""


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
    latency: float = 0.001  # seconds, at most
    sizer: str = "fixed"
    scale_batch: bool = False
    micro_batch: int | None = None  # samples
    exact: bool = False
    is_early: bool = False  # whether gradients are pushed before they are complete
    partial_steps: bool = False  # whether shards step range by range, as gradients arrive
    keeps_names: bool = False  # whether a worker that was killed comes back under its name

    @classmethod
    def of(cls, seed, kinds=tuple(KINDS), every=EVERY):
        """Return the scenario of a seed, with a fault every so many seconds on average."""
        draw = random.Random(seed)
        faults, now = [], draw.expovariate(1 / every)
        job = (
            draw.choice((2, 3, 3, 4)),
            draw.choice((1, 2, 2, 3, 4)),
            draw.choice(("even", "proportional", "learned")),
            draw.choice((0, 0, 2)),
        )
        while now < _SPAN:
            kind = draw.choice(kinds)
            faults.append(Fault(now, kind, draw.random(), draw.uniform(*KINDS[kind])))
            now += draw.expovariate(1 / every)
        sizer = draw.choice(("fixed", "fixed", "schedule", "similarity"))
        micro_batch = draw.choice((None, None, 2))
        return cls(
            seed,
            *job,
            tuple(faults),
            latency=draw.choice((0.001, 0.01, 0.1)),
            sizer=sizer,
            scale_batch=sizer == "fixed" and draw.random() < 0.5,
            micro_batch=micro_batch,
            exact=micro_batch is not None and draw.random() < 0.5,
            is_early=micro_batch is None and draw.random() < 0.5,
            partial_steps=draw.random() < 0.5,
            keeps_names=random.Random(seed + 3).random() < 0.5,
        )

    def start(self, world, folder, outcome):
        """Start the job's processes."""
        return Job(world, folder, self, outcome)


@dataclass
class Outcome:
    """What came of a scenario."""

    scenario: Scenario
    fired: Counter = field(default_factory=Counter)  # faults by kind
    wrongs: list[str] = field(default_factory=list)  # what should not be, in words
    events: int = 0
    digest: int = 0
    seconds: float = 0.0  # of virtual time
    standstill: float = 0.0  # the most seconds in which no worker has done a part of an iteration

    def __str__(self):
        fired = ", ".join(f"{count} {kind}" for kind, count in sorted(self.fired.items()))
        wrong = f" WRONG: {'; '.join(self.wrongs)}" if self.wrongs else ""
        return (
            f"seed {self.scenario.seed}: {self.seconds:.0f} s, {self.events} events ({self.digest:08x}), "
            f"{fired or 'no fault'}{wrong}"
        )


class Job:
    """The processes of one scenario.

    Attributes:
        keep: Seconds for which it waits for other workers where those that are there cannot go on.
        has_forgotten_end: Whether the manager was started again after a worker had finished: it may not know
            that those have left which had.
    """

    keep = 600.0

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
        self._went_on_at = world.now
        self._delivered = {}  # the last parameters of each worker's model
        self._parts = {}  # what workers were given: by attempt and iteration, (epoch, start, total), slices
        self._noted = {}  # how often the manager had been started when the first of these were given
        self._starts = 0  # of the manager
        self.has_forgotten_end = False
        self._attempts = {}  # the attempt in which each worker has finished
        self._disks = {
            name: Disk(folder / name, f"{scenario.seed} {name}")
            for name in ("manager", *(f"ps-{number}" for number in range(scenario.shards)))
        }
        self._operator = world.process("operator")
        problem = product().module("tests.scripts.train_least_squares")
        self._problem = problem
        address = product().module("rpc.address").Address
        job_config = product().module("batchsize_manager.job.config").JobConfig
        manager, sizers = (product().module(f"batchsize_manager.{name}") for name in ("service", "sizers"))
        synchronisation = product().module("idl.synchronisation").Synchronisation
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
                keep=self.keep,
                scale_batch=scenario.scale_batch,
                sizing=sizers.Sizing(
                    scenario.sizer, sizers.Sizes(*_SIZES) if scenario.sizer == "similarity" else None
                ),
                synchronisation=synchronisation(exact=scenario.exact),
            ),
            state=self._disks["manager"].path,
        )
        self._make = {"manager": (lambda: manager.ManagerService(config), self._manager_at)}
        shard = product().module("ps.service").ParameterServerService
        shard_config = product().module("ps.config").ParameterServerConfig
        for number, at in enumerate(self._shards_at):
            own = shard_config(state=self._disks[f"ps-{number}"].path, checkpoint_every=5)
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

    @property
    def _count(self):
        """Workers that live, frozen ones included."""
        return sum(name not in self.ends and name not in self.errors for name in self.workers)

    @property
    def _has_room(self):
        """Whether a batch has room for another worker beside those that live."""
        return self._count < _MOST_WORKERS

    @property
    def _most_samples(self):
        """The most samples of a batch that an operator asks for."""
        return math.inf

    @property
    def has_finished(self):
        """Whether a worker has gone through all iterations."""
        return any(is_last for _, is_last in self.ends.values())

    def _serve(self, name):
        make, address = self._make[name]
        self._starts += name == "manager"
        self.has_forgotten_end |= name == "manager" and self.has_finished
        process = self.services[name] = self._world.process(name)
        self._disks[name].attach(process)
        server = product().module("rpc.server")
        loop = Loop(process)
        refused = (OSError, product().module("batchsize_manager.storage.state_format").StateError)

        async def begin():
            try:
                service = make()
            except refused:  # by its disk: a supervisor starts it again
                process.kill()
                process.disk.lose_process()
                self._world.at(1.0, self._operator, self._serve, name)
                return
            await server.Server(service).start(address)

        loop.call_soon(lambda: loop.create_task(begin()))

    def _start_worker(self, name=None):
        name = name or f"w{next(self._names)}"
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
            **self._settings(),
        )

        def compute(session, part=1.0):
            share = session.assignment.count / self._problem.SPEC.total_batch_size
            self._world.sleep(pace * part * share * spread.uniform(0.8, 1.2))

        def train():
            session = None
            try:
                session = session_module.Session(config)
                for part in self._go_through(session, compute):
                    self._done = max(self._done, part.assignment.iteration)
                    self._go_on()
                is_last = session.released is None
                self._go_on()
                self.ends[name] = self._parameters(session), is_last
            except product().module("idl.errors").ReleasedError:  # before its first batch
                self.ends[name] = np.zeros(self._problem.FEATURES), False
            except Exception as error:  # noqa: BLE001 - looked at when all have ended
                self.errors[name] = error
            finally:
                if session is not None:
                    session.close()

        self._world.spawn(process, train)

    def _go_on(self):
        """Note that a worker has done a part of an iteration, or has come to its end."""
        self._outcome.standstill = max(self._outcome.standstill, self._world.now - self._went_on_at)
        self._went_on_at = self._world.now

    def _settings(self):
        """Return further settings of a worker's session."""
        return {}

    def _go_through(self, session, compute):
        """Train, and yield each slice once it is done."""
        spec, scenario = self._problem.SPEC, self._scenario
        loader = (
            product()
            .module("worker.data.slices")
            .Slices(
                spec.dataset_size,
                _SCHEDULE if scenario.sizer == "schedule" else spec.total_batch_size,
                session,
                shuffle=spec.shuffle,
                seed=spec.seed,
                micro_batch=scenario.micro_batch,
            )
        )
        layout = product().module("idl.layout")
        groups = (layout.Group(self._problem.FEATURES, {"lr": self._problem.RATE}),)
        server, name = session.exchange, session.config.worker

        def deliver():
            self._delivered[name] = server.parameters.copy()

        first = np.zeros(self._problem.FEATURES)
        server.prepare(layout.Layout("float64", "sgd", groups), first, deliver=deliver)
        session.start_training()
        for part in self.slices(session, loader):
            self._contribute(session, part, compute)
            session.finish_iteration()
            yield part

    def slices(self, session, loader):
        """Yield a worker's slices, up to the job's last iteration or its release."""
        while session.released is None:
            for part in loader:
                if part.assignment.iteration >= ITERATIONS:
                    self._attempts[session.config.worker] = part.assignment.attempt
                    return
                self._note(part.assignment)
                yield part

    def _note(self, part):
        """Note what a worker was given."""
        batch = part.epoch, part.batch_start, part.total
        key = part.attempt, part.iteration
        told, slices = self._parts.setdefault(key, (batch, set()))
        if told != batch and self._noted[key] < self._starts:  # of an attempt that was lost everywhere
            told, slices = self._parts[key] = batch, set()
            del self._noted[key]
        self._noted.setdefault(key, self._starts)
        if told != batch:
            self._outcome.wrongs.append(f"iteration {part.iteration} has {batch}, and {told}")
        slices.add((part.start, part.count))

    def _contribute(self, session, part, compute):
        """Compute the gradient of a slice; push a half of it before the other, where the job does."""
        problem, server, done = self._problem, session.exchange, part.assignment
        for one in part.micro_batches:
            gradient = problem.mean_gradient(server.parameters, one.indices)
            server.gradient.accumulate(done, gradient, one.count)
        if not part.micro_batches:
            server.gradient.values[:] = problem.mean_gradient(server.parameters, part.indices)
        if not self._scenario.is_early or not server.may_begin(done):
            compute(session)
            return
        compute(session, 0.5)
        server.begin_push(done, None, session.training.lr_scale)
        bounds = product().module("idl.layout").shard_bounds(problem.FEATURES, server.shards)
        server.advance_push([(begin + end) // 2 for begin, end in bounds])
        compute(session, 0.5)
        if self._draw.random() < 0.05:
            server.give_up_push("as a script that changes gradients after the backward pass")

    def possible(self, worker, is_last):
        """Return the parameters with which a worker may end: those of one process, at the end or on the way.

        Raises:
            ValueError: A batch is missing, or does not begin where the one before it ends.
        """
        if not is_last:
            return [np.zeros(self._problem.FEATURES), *self._earlier()]
        found = self._batches(self._attempts[worker])
        for iteration, ((_, start, total), slices) in enumerate(found):
            position = start
            for first, count in sorted(slices):
                if first > position:
                    break
                position = max(position, first + count)
            if position < start + total:
                raise ValueError(f"of iteration {iteration}, samples from {position} on are with nobody")
        return [self.trained_with([batch for batch, _ in found])]

    def trained_with(self, batches):
        """Return the parameters after all batches, which are to follow each other.

        Raises:
            ValueError: A batch is missing, or does not begin where the one before it ends.
        """
        following = 0, 0
        for iteration, (epoch, start, total, *_) in enumerate(batches):
            if (epoch, start) != following:
                raise ValueError(f"iteration {iteration} begins at {(epoch, start)}, not at {following}")
            ends = start + total >= self._problem.SPEC.dataset_size
            following = (epoch + 1, 0) if ends else (epoch, start + total)
        if len(batches) < ITERATIONS:
            raise ValueError(f"iteration {len(batches)} was given to nobody")
        *_, last = self._problem.versions_of([batch[:3] for batch in batches])
        return last

    def _earlier(self):
        """Yield all parameters that the job has had, also in attempts that it has gone back from."""
        for attempt in {attempt for attempt, _ in self._parts}:
            yield from self._problem.versions_of([batch for batch, _ in self._batches(attempt)])

    def _batches(self, last):
        """Return batch and slices of each iteration, as they were in the attempts up to this one."""
        known = {}
        for attempt, iteration in sorted(self._parts):
            if attempt <= last:  # it is given out in a later one unless its step was taken
                known[iteration] = self._parts[attempt, iteration]
        return [known[iteration] for iteration in itertools.takewhile(known.__contains__, itertools.count())]

    def _parameters(self, session):
        """Return the parameters with which a worker ends."""
        return self._delivered[session.config.worker]

    def _may_kill(self, worker):
        """Return whether the job can go on without a worker."""
        return True

    def _befall(self, fault):
        """Let a fault happen, if there is something that it can befall."""
        left = ITERATIONS - self._done
        live = [
            process
            for name, process in self.workers.items()
            if not process.is_frozen and name not in self.ends and name not in self.errors
        ]
        if self.has_finished or self.errors or left <= _CALM_ITERATIONS or not live:
            return
        kind, _, part = fault.kind.partition(" ")
        leaves = kind in ("kill", "drain")
        if part == "worker" and (len(live) < 2 or (leaves and left <= 2 * _CALM_ITERATIONS)):
            return
        if kind == "start" and not self._has_room:
            return
        if part in ("worker", "job"):
            victim = _of(live, fault.victim)
            if leaves and not self._may_kill(victim):
                return
        elif part in ("shard", "manager"):
            services = [
                one for name, one in self.services.items() if (name == "manager") == (part == "manager")
            ]
            victim = _of(services, fault.victim)
            # A service that is killed before it could write of the job has nothing to come back with.
            spares = kind in _OF_DISKS and not (self._done and self._has_checkpoint(part, victim))
            if victim.is_dead or victim.is_frozen or spares:
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

    @staticmethod
    def _has_checkpoint(part, service):
        return part == "manager" or any(Path(service.disk.path).glob("*/*.checkpoint"))

    def _kill(self, worker):
        worker.kill()
        del self.workers[worker.name]
        return lambda: self._replace(worker.name if self._scenario.keeps_names else None)

    def _freeze(self, process):
        process.freeze()
        return process.thaw

    def _restart(self, service):
        service.kill()
        service.disk.lose_process()
        return lambda: self._serve(service.name)

    def _crash(self, service):
        service.kill()
        service.disk.lose_writes()
        return lambda: self._serve(service.name)

    def _tear(self, service):
        def on_death(disk):
            self._draw.choice((disk.lose_process, disk.lose_writes))()
            self._world.at(self._draw.uniform(0.05, 2.0), self._operator, self._serve, service.name)

        service.disk.die_at(self._draw.randint(1, 20), on_death)

    def _fill(self, service):
        service.disk.is_full = True
        return lambda: setattr(service.disk, "is_full", False)

    def _fail(self, service):
        service.disk.fails = self._draw.choice(("write", "fsync"))

    def _stall(self, service):
        service.disk.delay = self._draw.uniform(0.1, 2.0)
        return lambda: setattr(service.disk, "delay", 0.0)

    def _flip(self, service):
        damage, place = product().module("lab.chaos.damage"), self._draw.random()
        service.kill()
        service.disk.lose_process()
        folders = {name: Path(disk.path) for name, disk in self._disks.items()}
        own, manager = folders.pop(service.name), folders.pop("manager", None)
        if manager is None:
            with contextlib.suppress(sqlite3.OperationalError):  # it has no tables yet
                damage.flip_saved_bit(own, place)
        elif lost := damage.copy_to_lose(own, list(folders.values())):
            if self._draw.random() < 0.3:
                service.disk.fails = "read"  # of the newest one, at the next start
            else:
                damage.flip_bit(lost.path, place)
        return lambda: self._serve(service.name)

    def _start(self, worker):
        self._start_worker()

    def _drain(self, worker):
        self._order(lambda client: client.drain("default", worker.name))
        return self._replace

    def _replace(self, name=None):
        """Start a worker in place of another, once a batch has room for it, which is to be full at most."""
        if self.has_finished:
            return
        if self._has_room:
            self._start_worker(name)
        else:
            self._world.at(1.0, self._operator, self._replace, name)

    def _resize(self, worker):
        least, most = _SIZES
        samples = self._draw.randint(least, max(least, min(most, self._most_samples)))
        self._order(lambda client: client.set_total_batch_size("default", samples))

    def _pause(self, worker):
        self._order(lambda client: client.pause("default"))
        # Again and again, since a manager whose machine crashes may forget it.
        return lambda: self._order(lambda client: client.resume("default"), every=10.0)

    def _order(self, action, every=None):
        """Have an operator ask the manager for something until it has answered; or again and again."""
        client = product().module("batchsize_manager.client").ManagerClient
        errors = product().module("idl.errors")

        def ask():
            while not self.is_over:
                has_answered = True
                try:
                    with client(self._manager_at) as asking:
                        action(asking)
                except errors.EvenpaceError as error:
                    has_answered = isinstance(error, errors.InvalidRequestError)  # which refuses it
                if has_answered and every is None:
                    return
                self._world.sleep(every or 0.5)

        self._world.spawn(self._operator, ask)

    def _jump(self, process):
        process.clock = self._draw.choice((-1.0, 1.0)) * self._draw.uniform(60.0, 36_000.0)
        return lambda: setattr(process, "clock", 0.0)

    def _cut(self, endpoint):
        endpoint.peer.reset()
        endpoint.reset()
        endpoint.arrive_end(ConnectionResetError("cut"))

    def _hole(self, endpoint):
        for end in endpoint.process.endpoints:
            end.is_hole = end.peer.is_hole = True

    def _part(self, endpoint):
        self._world.part(endpoint.process, endpoint.peer.process, self._draw.uniform(0.5, 12.0))

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
        World(scenario.seed, scenario.latency) as world,
        mock.patch.object(product().module("worker.shard_clients"), "LEAST_EARLY_PULL", 0)
        if scenario.partial_steps
        else contextlib.nullcontext(),
    ):
        begin = world.now
        job = scenario.start(world, Path(folder), outcome)
        try:
            world.run(lambda: job.is_over, _SECONDS)
        except StalledError as error:
            outcome.wrongs.append(f"it does not end, {error}")
        outcome.events, outcome.digest, outcome.seconds = world.events, world.digest, world.now - begin
        for name, (parameters, is_last) in job.ends.items():
            try:
                possible = job.possible(name, is_last)
            except ValueError as error:
                outcome.wrongs.append(f"{name} has ended, but {error}")
                continue
            # Who was passed over by the others, and is released then, may have a later step's of some shards.
            parts = (
                product()
                .module("idl.layout")
                .shard_bounds(len(parameters), 1 if is_last else max(1, scenario.shards))
            )
            difference = max(
                min(float(np.abs((parameters - one)[begin:end]).max(initial=0.0)) for one in possible)
                for begin, end in parts
            )
            if difference > _TOLERANCE:
                outcome.wrongs.append(f"{name} ends with parameters that differ by {difference:.1e}")
    if outcome.standstill > _STANDSTILL:
        outcome.wrongs.append(f"for {outcome.standstill:.0f} s, no worker has done anything")
    for name, error in job.errors.items():
        if job.has_finished and "workers have joined" in str(error):
            continue  # it has come after the end, and waits in another run of the job
        if job.has_forgotten_end and any(
            words in str(error) for words in ("and no other has come for", "no worker has its state any more")
        ):
            continue  # it was silent while the others finished, or came since: the manager may not know
        outcome.wrongs.append(f"{name} ends with {type(error).__name__}: {error}")
    for name, error in world.failures:
        outcome.wrongs.append(f"in {name}, {type(error).__name__}: {error}")
    if not any(is_last for _, is_last in job.ends.values()):
        outcome.wrongs.append("no worker has gone through all iterations")
    return outcome


def shrink(scenario):
    """Return the scenario with as few faults as it takes to fail; the faults that stay keep their times."""
    faults = list(scenario.faults)
    size = max(1, len(faults) // 2)
    while size:
        for begin in range(0, len(faults), size):
            fewer = faults[:begin] + faults[begin + size :]
            smaller = dataclasses.replace(scenario, faults=tuple(fewer))
            if simulate(smaller).wrongs:
                faults = fewer
                break
        else:
            size //= 2
    return dataclasses.replace(scenario, faults=tuple(faults))


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
