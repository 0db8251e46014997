"""The simulated cluster: jobs under faults, and that a simulation is what it claims to be."""

import dataclasses
import sys

import pytest

from tests.evenpace.commands import python
from tests.simulation import modules, network
from tests.simulation.cluster import KINDS, Fault, Scenario, shrink, simulate
from tests.simulation.product import product
from tests.simulation.world import StalledError, World


@pytest.fixture(scope="module")
def simulated():
    """The copy of the product, which is made once."""
    return product()


@pytest.fixture
def world():
    """A world of its own."""
    with World(seed=1) as made:
        yield made


def run(world, *processes, seconds=100.0):
    """Run each function as a process of its own, until all have returned; their results in order."""
    results = {}

    def body(number, function):
        results[number] = function()

    for number, function in enumerate(processes):
        process = world.process(f"p{number}")
        world.spawn(process, lambda number=number, function=function: body(number, function))
    world.run(lambda: len(results) == len(processes) or bool(world.failures), seconds)
    assert not world.failures, world.failures
    return [results[number] for number in sorted(results)]


def seeds(quick, often, all_):
    """Return seeds from 0: so many for each run of the tests, for a change, and for a release."""
    marks = pytest.mark.ci, pytest.mark.release
    return [pytest.param(seed, marks=marks[seed >= often] if seed >= quick else ()) for seed in range(all_)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(quick=8, often=50, all_=100))
def test_a_job_ends_right_whatever_befalls_it(simulated, seed):
    """All workers that live end well, with the parameters of one process."""
    outcome = simulate(Scenario.of(seed))
    assert not outcome.wrongs, f"{outcome}\nmake simulate SEED={seed} shows how it came to that"


def assert_all_happen(kinds, scenario):
    """Check that jobs which only these kinds of faults can befall have each of them, and end right."""
    fired = set()
    for seed in range(1_000, 1_010):
        outcome = simulate(scenario.of(seed, kinds=kinds))
        assert not outcome.wrongs, outcome
        fired |= set(outcome.fired)
        if fired == set(kinds):
            return
    assert fired == set(kinds)


@pytest.mark.ci
@pytest.mark.parametrize("part", range(6))
def test_every_kind_of_fault_happens(simulated, part):
    """Of every sixth kind there is some where no other befalls the job."""
    assert_all_happen(tuple(KINDS)[part::6], Scenario)


@pytest.mark.ci
def test_a_seed_is_the_same_run_everywhere(simulated):
    """In this process, and in another one whose hashes differ: the same events at the same times."""
    scenario = Scenario.of(3)
    outcome, again = simulate(scenario), simulate(scenario)
    assert outcome.events > 1_000
    assert str(outcome) == str(again)
    alone = python("-m", "tests.simulation", 3, env={"PYTHONHASHSEED": "7", "PATH": ""})
    assert str(outcome) in alone.stdout, alone.stderr


@pytest.mark.slow
def test_a_wrong_weight_is_found(simulated, monkeypatch):
    """A shard that gives a sample too much weight trains other parameters than one process."""
    with simulated:
        shard = simulated.module("ps.shard").Shard
    add = shard.add
    monkeypatch.setattr(shard, "add", lambda self, part, piece: add(self, part, piece * 1.001))
    assert "with parameters that differ by" in str(simulate(Scenario.of(2)))


@pytest.mark.slow
def test_faults_that_matter_are_left_of_a_scenario_that_fails(simulated, monkeypatch):
    """Of many faults that one which fails, by a worker that may not be frozen."""
    with simulated:
        member = simulated.module("worker.session").Session
    finish = member.finish_iteration

    def fail_after_a_freeze(self, *arguments):
        if any(process.was_frozen for process in World.current.processes if process is World.current.running):
            raise RuntimeError("it was frozen")
        return finish(self, *arguments)

    monkeypatch.setattr(member, "finish_iteration", fail_after_a_freeze)
    freeze = Fault(2.0, "freeze worker", 0.1, 1.0)
    faults = (Fault(1.0, "cut", 0.5, 0.0), freeze, Fault(4.0, "hole", 0.2, 0.0))
    scenario = Scenario(seed=5, workers=2, shards=1, policy="even", lookahead=0, faults=faults)
    assert shrink(scenario).faults == (freeze,)


def test_faults_come_as_often_as_asked_for():
    """On average, of as many kinds; the same seed has the same ones each time."""
    rare, often = (
        [fault for seed in range(20) for fault in Scenario.of(seed, every=every).faults]
        for every in (1.0, 0.25)
    )
    assert 3.5 < len(often) / len(rare) < 4.5
    assert {fault.kind for fault in rare} == {fault.kind for fault in often} == set(KINDS)


@pytest.mark.slow
def test_a_standstill_is_found(simulated):
    """A job that ends right is wrong if nothing has gone on for longer than faults are to last."""
    freeze = Fault(2.0, "freeze manager", 0.0, 110.0)
    scenario = Scenario(seed=5, workers=2, shards=1, policy="even", lookahead=0, faults=(freeze,))
    outcome = simulate(scenario)
    assert outcome.wrongs == [f"for {outcome.standstill:.0f} s, no worker has done anything"]
    assert 100.0 < outcome.standstill < 130.0


@pytest.mark.slow
@pytest.mark.parametrize("keeps_names", [False, True])
def test_a_killed_worker_comes_back_under_its_name_or_another(simulated, monkeypatch, keeps_names):
    """As a scheduler would start it again, or another in its place."""
    names, process = [], World.process
    monkeypatch.setattr(World, "process", lambda self, name: names.append(name) or process(self, name))
    kill = Fault(2.0, "kill worker", 0.0, 0.5)
    job = Scenario(seed=5, workers=2, shards=1, policy="even", lookahead=0, faults=(kill,))
    outcome = simulate(dataclasses.replace(job, keeps_names=keeps_names))
    assert not outcome.wrongs
    workers = [name for name in names if name.startswith("w")]
    assert workers == ["w0", "w1", "w0" if keeps_names else "w2"]


def listening(world, protocol, name="service"):
    """Start a service with a protocol on port 1."""
    process = world.process(name)
    loop = network.Loop(process)
    loop.call_soon(lambda: loop.create_task(loop.create_server(protocol, "127.0.0.1", 1)))
    return process


def connected():
    """Return a client's connection to port 1."""
    connection = network.socket.socket()
    connection.settimeout(10.0)
    connection.connect(("127.0.0.1", 1))
    return connection


class Echo:
    """A protocol that sends back what it gets, in buffers of three bytes."""

    def connection_made(self, transport):
        """Keep the transport."""
        self._transport = transport

    def connection_lost(self, error):
        """Do nothing."""

    def get_buffer(self, hint):
        """Return the memory for the next bytes."""
        self._buffer = memoryview(bytearray(3))
        return self._buffer

    def buffer_updated(self, count):
        """Send them back."""
        self._transport.write(self._buffer[:count])


def exchange(connection, sent):
    """Send bytes one by one, and return as many that come."""
    for byte in sent:
        connection.send(bytes([byte]))
    got = b""
    while len(got) < len(sent):
        got += connection.recv(100)
    return got


def test_a_frozen_service_answers_when_it_goes_on(world):
    """Its kernel takes connections and bytes meanwhile."""
    service = listening(world, Echo)

    def client():
        modules.time.sleep(0.1)
        service.freeze()
        world.at(5.0, None, service.thaw)
        exchange(connected(), b"abc")
        return world.now

    (ended,) = run(world, client)
    assert 1_005.1 < ended < 1_005.2


def test_a_killed_service_breaks_its_connections(world):
    """At once, and later ones are refused."""
    service = listening(world, Echo)

    def client():
        modules.time.sleep(0.1)
        connection = connected()
        exchange(connection, b"abc")
        service.kill()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        with pytest.raises(ConnectionRefusedError):
            connected()
        return True

    assert run(world, client) == [True]


def test_a_hole_swallows_what_is_sent(world):
    """A read ends by its timeout."""
    listening(world, Echo)

    def client():
        modules.time.sleep(0.1)
        connection = connected()
        connection.endpoint.is_hole = True
        connection.send(b"abc")
        with pytest.raises(TimeoutError):
            connection.recv(1)
        return world.now

    (ended,) = run(world, client)
    assert 1_010.1 < ended < 1_010.2


def test_what_waits_for_ever_is_told(world):
    """With the place in the source where each thread waits."""
    with pytest.raises(StalledError, match=r"p0[^$]*test_simulation.py[^$]*SimpleQueue"):
        run(world, lambda: modules.queue.SimpleQueue().get())


def test_a_file_is_locked_by_one_process(world, tmp_path):
    """Until it is killed."""
    path = tmp_path / "lock"
    owner = world.process("owner")
    world.spawn(owner, lambda: modules.fcntl.flock(path.open("w"), modules.fcntl.LOCK_EX))

    def other():
        modules.time.sleep(1.0)
        with path.open("w") as stream:
            with pytest.raises(BlockingIOError):
                modules.fcntl.flock(stream, modules.fcntl.LOCK_EX)
            owner.kill()
            modules.fcntl.flock(stream, modules.fcntl.LOCK_EX)
        return True

    assert run(world, other) == [True]


NOT_SIMULATED = {
    "multiprocessing": {"batchsize_manager.learning.trainer"},
    "psutil": {"worker.resources.monitors"},
    "secrets": {"rpc.tokens", "rpc.certificates"},
    "signal": {
        *("rpc.processes", "worker.parent", "batchsize_manager.learning.trainer"),
        "worker.resources.duty_cycle",
    },
}
"""Modules of processes, secrets and signals, which are the real ones, and who has them."""


def test_no_simulated_module_has_a_real_clock_thread_or_socket(simulated):
    """Nor another source of chance; what is not simulated is named."""
    simulate(Scenario.of(2))  # what is imported late is imported
    names = (
        "time",
        "threading",
        "queue",
        "socket",
        "select",
        "random",
        "uuid",
        "fcntl",
        "subprocess",
        "sqlite3",
        "concurrent.futures",
    )
    real = {
        id(sys.modules[name]): name for name in (*names, "selectors", *NOT_SIMULATED) if name in sys.modules
    }
    found = {}
    with simulated:
        for name, module in sys.modules.items():
            if name.partition(".")[0] in ("idl", "rpc", "ps", "batchsize_manager", "worker"):
                for value in vars(module).values():
                    of = real.get(id(value)) or _home(value)
                    if of in (*names, *NOT_SIMULATED, "selectors"):
                        found.setdefault(of, set()).add(name)
    assert found == NOT_SIMULATED


def _home(value):
    """Return the module that a function or a class is of."""
    return getattr(value, "__module__", None) if callable(value) else None
