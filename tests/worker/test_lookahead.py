"""Plans made ahead of their use, so that workers need not wait for batch sizes; with real services."""

import threading

import numpy as np
import pytest

from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerConfig, ManagerService
from idl.errors import EvenpaceError
from lab.proxy import Proxy
from tests.services import serving, shard_service
from tests.worker.least_squares import Worker, services, trained_alone

# -- the iterations of a job


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
