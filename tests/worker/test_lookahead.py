"""Plans made ahead of their use, so that workers need not wait for batch sizes; with real services."""

import contextlib
import json
import socket
import threading

import numpy as np
import pytest

import idl
from batchsize_manager import policies
from batchsize_manager.job.config import JobConfig
from batchsize_manager.policies import Policy, Split
from batchsize_manager.policies.solver import split
from batchsize_manager.service import ManagerConfig, ManagerService
from evenpace.local.cluster import LocalCluster
from idl.errors import EvenpaceError
from lab.observer import Observer
from rpc.address import Address
from rpc.client import Client
from tests.float64 import SCRIPT, train_alone
from tests.services import is_frozen, send_back, serving, shard_service
from tests.worker.least_squares import Worker, services, slices_follow_each_other, trained_alone
from tests.worker.processes import end_well, processes


class Gate:
    """A proxy of a service that can hold back answers."""

    def __init__(self, address):
        self._target = address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listener.getsockname())
        self.open = threading.Event()
        self.open.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        """Accept no more connections."""
        self.open.set()
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                threading.Thread(target=self._carry, args=(near, far, None), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, self.open), daemon=True).start()

    def _carry(self, source, sink, gate):
        with contextlib.suppress(OSError), source, sink:
            while data := source.recv(65536):
                if gate is not None:
                    gate.wait(240)
                sink.sendall(data)


# -- the iterations of a job


@pytest.mark.simulated
@pytest.mark.parametrize("lookahead", [1, 3])
@pytest.mark.parametrize("policy", ["leader_straggler", "proportional"])
def test_every_iteration_is_exact(lookahead, policy):
    """For any lookahead, slices tile each batch, and steps are those of the whole batch."""
    iterations = 40
    with services(3, policy, lookahead=lookahead) as (manager, shards):
        workers = [Worker(manager, shards, f"w{i}", iterations) for i in range(3)]
        done = [worker.end() for worker in workers]
    for iteration in range(iterations):
        assert slices_follow_each_other([parts[iteration] for parts in done if iteration in parts], iteration)
    for worker in workers:
        assert np.abs(worker.session.exchange.parameters - trained_alone(iterations)).max() < 1e-12


@pytest.mark.simulated
def test_a_report_that_comes_when_its_attempt_is_over_holds_up_no_other(tmp_path, wait_until):
    """A report of an attempt that is over does not delay those of the next attempt."""
    iterations, config = 30, ManagerConfig("even", job=JobConfig(workers=2, lookahead=2, silence=60.0))
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(serving(ManagerService(config)))
        shard = stack.enter_context(serving(shard_service(state=tmp_path, checkpoint_every=5)))

        def go_back(session):
            if (session.assignment.attempt, session.assignment.iteration) == (0, 12):
                wait_until(lambda: [*tmp_path.glob("*/*5.checkpoint")], "the checkpoint")
                send_back(session, manager, 5)

        late, other = (
            Worker(manager, [shard], "w0", iterations, go_back),
            Worker(manager, [shard], "w1", iterations),
        )
        membership = late.session._membership
        send = membership._client.send

        def send_late(method, request, **options):
            if (method, getattr(request, "iteration", None), getattr(request, "attempt", None)) == (
                "report",
                10,
                0,
            ):
                wait_until(lambda: membership.attempt == 1, "the other attempt")
            send(method, request, **options)

        membership._client.send = send_late
        for worker in (late, other):
            worker.end()
            assert np.abs(worker.session.exchange.parameters - trained_alone(iterations)).max() < 1e-12
    assert membership.attempt == 1


@pytest.mark.simulated
@pytest.mark.parametrize("lookahead", [1, 3])
def test_training_goes_on_while_the_manager_is_silent(wait_until, lookahead):
    """With answers held back, a worker uses all assignments that it has, and only then waits."""
    with services(1, lookahead=lookahead) as (manager, shards):
        gate = Gate(manager)
        held, go_on = threading.Event(), threading.Event()

        def hold(session):
            if session.assignment.iteration == 5:
                # All earlier reports have been answered, so what is planned is known.
                wait_until(lambda: session.planned(5 + lookahead), "the plans ahead")
                gate.open.clear()
                held.set()
                assert go_on.wait(240)

        worker = Worker(gate.address, shards, "w", 30, hold)
        assert held.wait(240)
        go_on.set()
        # Iterations 0 to 5 + lookahead are begun, and all of them are finished but the reports' answers.
        wait_until(lambda: len(worker.done) >= 5 + lookahead, "the plans' end")
        worker.join(0.2)
        assert len(worker.done) == 5 + lookahead
        gate.open.set()
        assert len(worker.end()) == 30
        gate.close()
    assert np.abs(worker.session.exchange.parameters - trained_alone(30)).max() < 1e-12


def test_the_training_thread_does_not_call_the_manager(monkeypatch, wait_until):
    """Between joining and leaving, only background threads call the manager."""
    calls = []
    original = Client.call

    def call(self, method, *arguments, **options):
        if self.name == "BatchSizeManager":
            calls.append((method, threading.current_thread().name))
        return original(self, method, *arguments, **options)

    monkeypatch.setattr(Client, "call", call)
    beside = {"report": "evenpace-reports", "heartbeat": "evenpace-heartbeat"}

    def at(session):
        if session.assignment.iteration == 10:
            wait_until(lambda: set(beside) <= {method for method, _ in calls}, "a report and a heartbeat")

    with services(1, lookahead=1) as (manager, shards):
        Worker(manager, shards, "w", 20, at).end()
    assert [method for method, _ in calls if method not in beside] == ["join", "leave"]
    assert {(method, thread) for method, thread in calls if method in beside} == set(beside.items())


@pytest.mark.simulated
@pytest.mark.parametrize("lookahead", [1, 3])
def test_a_limit_holds_once_the_plans_made_before_are_used_up(lookahead):
    """Plans made before a limit was reported may be above it; later ones are not."""
    limit, told_at = 3, 4

    def at(session):
        if session.assignment.iteration == told_at:
            session.limits.lower_maximum(limit)
            session.limits.lower_maximum(limit + 2)  # not above what it has proved before

    with services(2, lookahead=lookahead) as (manager, shards):
        other = Worker(manager, shards, "other", 30)
        short = Worker(manager, shards, "short", 30, at)
        counts = [part.count for part in short.end().values()]
        other.end()
    assert counts[told_at] == 8
    assert max(counts[told_at + lookahead + 1 :]) <= limit
    assert short.session.limits.maximum == limit
    for worker in (other, short):
        assert np.abs(worker.session.exchange.parameters - trained_alone(30)).max() < 1e-12


# -- going


@pytest.mark.simulated
@pytest.mark.parametrize("lookahead", [1, 3])
def test_what_was_planned_for_a_worker_that_leaves_is_planned_anew(lookahead):
    """When a worker leaves, the others begin another attempt there; no sample is lost."""
    with services(3, lookahead=lookahead) as (manager, shards):
        workers = [Worker(manager, shards, f"w{i}", 10 if i == 1 else 40) for i in range(3)]
        done = [worker.end() for worker in workers]
    assert len(done[1]) == 10
    for iteration in range(10, 40):
        assert slices_follow_each_other([done[0][iteration], done[2][iteration]], iteration)
    for worker in (workers[0], workers[2]):
        assert np.abs(worker.session.exchange.parameters - trained_alone(40)).max() < 1e-12


@pytest.mark.simulated
@pytest.mark.parametrize("lookahead", [1, 3])
def test_a_killed_worker_does_not_keep_the_others_waiting(tmp_path, wait_until, lookahead):
    """Workers that wait in a pull for a killed worker's gradient are freed by the thread that reports."""
    options = ["--lookahead", str(lookahead), "--silence", "600"]  # it is no silence that frees them
    with (
        LocalCluster(tmp_path, workers=3, manager_options=options) as cluster,
        processes(
            *(tmp_path, cluster.manager, cluster.shard_addresses, ["w0", "w1", "w2"]),
            freeze={"w1": "5:push:0"},
        ) as workers,
    ):
        wait_until(lambda: is_frozen(workers["w1"]), "its last moment")
        workers["w1"].kill()
        end_well(tmp_path, workers, wait_until, ["w0", "w2"], trained_alone(60))
        observer = Observer(cluster.manager, cluster.shard_addresses)
        observer.poll()
    assert any(event.startswith("w1 died") for event in observer.events)
    assert np.array_equal(np.load(tmp_path / "w0.npy"), np.load(tmp_path / "w2.npy"))


@pytest.mark.simulated
@pytest.mark.parametrize("lookahead", [1, 3])
def test_when_the_manager_dies_for_good_every_worker_ends(lookahead):
    """When the manager dies for good, all workers end with an error, also those that wait in a pull."""
    with serving(shard_service()) as shard:
        shards = [shard]
        reached = threading.Event()

        def at(session):
            if session.assignment.iteration == 5:
                reached.set()

        with serving(ManagerService(ManagerConfig("even", job=JobConfig(3, lookahead)))) as manager:
            workers = [Worker(manager, shards, f"w{i}", 10**6, at, barrier_timeout=6.0) for i in range(3)]
            assert reached.wait(240)
        for worker in workers:
            with pytest.raises(EvenpaceError, match=r"BatchSizeManager|shutting down"):
                worker.end()


@pytest.mark.simulated
def test_what_fails_in_the_reporting_thread_ends_the_training():
    """An error in the reporting thread, as of a time that cannot be measured, ends the training."""

    def at(session):
        if session.assignment.iteration == 3:
            session.meter.measure_by(lambda: measure)

    def measure():
        raise RuntimeError("CUDA error: the device is gone")

    with services(1, lookahead=1) as (manager, shards):
        worker = Worker(manager, shards, "w", 30, at)
        with pytest.raises(EvenpaceError, match="cannot report any more: CUDA error"):
            worker.end()


# -- release


class WithoutSlow(Policy):
    """A policy that splits evenly, and after some iterations calls the worker `slow` dispensable."""

    def __init__(self):
        self._members = ()
        self._observed = 0

    def set_members(self, members):
        """Note the members, as `Policy.set_members`."""
        self._members = members

    def observe(self, observations):
        """Count iterations, as `Policy.observe`."""
        self._observed += 1

    def split(self, total):
        """Split evenly, as `Policy.split`."""
        names = [member.name for member in self._members]
        counts = split([1.0] * len(names), total, [member.bounds for member in self._members])
        dispensable = {"slow": "slow takes more time than it saves"}
        return Split(counts, dispensable=dispensable if "slow" in names and self._observed >= 8 else {})


@pytest.mark.simulated
@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_a_released_worker_ends_well_and_nothing_is_lost(monkeypatch, lookahead):
    """A released worker finishes its assignments; the others take its part from then on."""
    monkeypatch.setitem(policies.POLICIES, "without_slow", lambda options: WithoutSlow())
    with services(3, "without_slow", lookahead=lookahead, release=True) as (manager, shards):
        workers = [Worker(manager, shards, name, 40) for name in ("a", "slow", "b")]
        done = [worker.end() for worker in workers]
        client = Client(idl.batchsize_manager.BatchSizeManager, manager, "manager")
        with contextlib.closing(client):
            request = idl.batchsize_manager.StatusRequest("default", -1)
            events = [event.text for event in client.call("status", request).events]
    slow = workers[1].session
    assert slow.released == "slow takes more time than it saves"
    assert 8 <= len(done[1]) <= 8 + 2 * lookahead + 1
    assert "slow was released: slow takes more time than it saves" in events
    assert not any("died" in event or "in time" in event for event in events)
    for iteration in range(40):
        assert slices_follow_each_other([parts[iteration] for parts in done if iteration in parts], iteration)
    for i in (0, 2):
        assert np.abs(workers[i].session.exchange.parameters - trained_alone(40)).max() < 1e-12


# -- real workers, with loading processes


@pytest.mark.ci
@pytest.mark.parametrize(("lookahead", "policy"), [(1, "leader_straggler"), (3, "proportional")])
def test_loading_processes_keep_the_sums_exact(tmp_path, wait_until, lookahead, policy):
    """With batches loaded ahead of uneven plans, three workers end with one process's parameters."""
    # Nobody's part is to be done by others while a busy machine holds it up.
    options = ["--lookahead", str(lookahead), "--silence", "600"]
    with LocalCluster(tmp_path, workers=3, policy=policy, tolerance=0.0, manager_options=options) as cluster:
        for i, limit in enumerate(("64", "20", "7")):
            arguments = ["--out", str(tmp_path / f"{i}.npy"), "--num-workers", str(i)]
            cluster.start_worker(f"w{i}", SCRIPT, arguments, options={"--max-batch-size": limit})
        wait_until(lambda: not cluster.check(), "the end of training")
    alone = train_alone("sgd")
    sizes = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(3)]
    assert [sum(parts) for parts in zip(*sizes, strict=True)] == ([64] * 7 + [52]) * 7
    for i in range(3):
        assert np.abs(np.load(tmp_path / f"{i}.npy") - alone).max() < 1e-9
