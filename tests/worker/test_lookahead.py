"""Plans made ahead of their use, so that workers need not wait for batch sizes; with real services."""

import contextlib
import threading

import numpy as np
import pytest

from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerConfig, ManagerService
from idl.errors import EvenpaceError
from lab.proxy import Proxy
from tests.services import send_back, serving, shard_service
from tests.worker.least_squares import Worker, services, trained_alone

# -- the iterations of a job


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


# -- going


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
