"""Plans made ahead of their use, so that workers need not wait for batch sizes; with real services."""

import contextlib
import json
import threading

import numpy as np
import pytest

from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerConfig, ManagerService
from evenpace.local.cluster import LocalCluster
from idl.errors import EvenpaceError
from lab.proxy import Proxy
from rpc.client import Client
from tests.float64 import SCRIPT, train_alone
from tests.services import send_back, serving, shard_service
from tests.worker.least_squares import Worker, services, slices_follow_each_other, trained_alone

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
    with services(1, lookahead=lookahead) as (manager, shards), Proxy() as proxy:
        address = proxy.add("manager", manager)
        gate = proxy.links["manager"].open
        held, go_on = threading.Event(), threading.Event()

        def hold(session):
            if session.assignment.iteration == 5:
                # All earlier reports have been answered, so what is planned is known.
                wait_until(lambda: session.planned(5 + lookahead), "the plans ahead")
                proxy.do(gate.clear)
                held.set()
                assert go_on.wait(240)

        worker = Worker(address, shards, "w", 30, hold)
        assert held.wait(240)
        go_on.set()
        # Iterations 0 to 5 + lookahead are begun, and all of them are finished but the reports' answers.
        wait_until(lambda: len(worker.done) >= 5 + lookahead, "the plans' end")
        worker.join(0.2)
        assert len(worker.done) == 5 + lookahead
        proxy.do(gate.set)
        assert len(worker.end()) == 30
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


# -- real workers, with loading processes


@pytest.mark.ci
def test_loading_processes_keep_the_sums_exact(tmp_path, wait_until):
    """With batches loaded ahead of uneven plans, three workers end with one process's parameters."""
    # Nobody's part is to be done by others while a busy machine holds it up.
    options = {"policy": "proportional", "manager_options": ["--lookahead", "3", "--silence", "600"]}
    with LocalCluster(tmp_path, workers=3, tolerance=0.0, **options) as cluster:
        for i, limit in enumerate(("64", "20", "7")):
            arguments = ["--out", str(tmp_path / f"{i}.npy"), "--num-workers", str(i)]
            cluster.start_worker(f"w{i}", SCRIPT, arguments, options={"--max-batch-size": limit})
        wait_until(lambda: not cluster.check(), "the end of training")
    alone = train_alone("sgd")
    sizes = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(3)]
    assert [sum(parts) for parts in zip(*sizes, strict=True)] == ([64] * 7 + [52]) * 7
    for i in range(3):
        assert np.abs(np.load(tmp_path / f"{i}.npy") - alone).max() < 1e-9
