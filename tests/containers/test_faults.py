"""A job whose containers are killed: a worker's, the manager's, a shard's."""

import numpy as np
import pytest

from batchsize_manager.client import ManagerClient
from tests.containers.engine import Cluster, docker
from tests.float64 import assert_as_alone

pytestmark = [pytest.mark.containers, pytest.mark.slow]

KILLED = 137


def test_a_killed_worker_is_replaced(tmp_path, wait_until):
    """One container is killed and another started in the middle; all that remain end with one result."""
    epochs = 60
    with Cluster(tmp_path / "out", workers=3) as cluster:
        workers = {name: cluster.start_worker(name, "--epochs", str(epochs)) for name in ("w0", "w1", "w2")}
        observer = cluster.observer()
        wait_until(lambda: observer.poll() and len(observer.iterations) > 5, "the first iterations")
        docker("kill", workers["w1"].id)
        assert workers.pop("w1").wait() == KILLED
        wait_until(
            lambda: observer.poll() and sorted(observer.members) == ["w0", "w2"], "the killed one's removal"
        )
        with ManagerClient(cluster.manager.address(4300)) as manager:
            manager.pause("default")  # lest the newcomer, which needs seconds to start, come too late
            workers["w3"] = cluster.start_worker("w3", "--epochs", str(epochs))
            wait_until(lambda: observer.poll() and "w3" in observer.members, "the newcomer")
            manager.resume("default")
        assert {name: worker.wait(600) for name, worker in workers.items()} == {"w0": 0, "w2": 0, "w3": 0}
        observer.poll()
    assert any(event.startswith("w1 died") for event in observer.events)
    teams = [set(record.workers) for record in observer.iterations]
    assert len(teams) == epochs * 8
    assert teams[0] == {"w0", "w1", "w2"}
    assert {"w0", "w2", "w3"} in teams
    for record in observer.iterations:  # what the killed one left undone was redone
        assert record.batch_sizes.sum() == record.total
    results = [np.load(tmp_path / "out" / f"{name}.npy") for name in workers]
    assert np.isfinite(results[0]).all()
    assert all(np.array_equal(result, results[0]) for result in results)


def test_services_containers_are_restarted(tmp_path, wait_until):
    """The manager's is killed, a shard's asked to stop: the job ends with the parameters of one process."""
    with Cluster(tmp_path / "out", workers=2) as cluster:
        workers = {name: cluster.start_worker(name, "--epochs", "60") for name in ("w0", "w1")}
        observer = cluster.observer()

        def more():
            """Wait for further iterations."""
            observer.poll()
            known = len(observer.iterations)
            wait_until(lambda: observer.poll() and len(observer.iterations) > known + 5, "further iterations")

        more()
        docker("kill", cluster.manager.id)
        assert cluster.manager.wait() == KILLED
        docker("start", cluster.manager.id)
        observer = cluster.observer()
        more()
        docker("restart", "--time", "30", cluster.ps.id)
        assert [worker.wait(240) for worker in workers.values()] == [0, 0]
    assert_as_alone(tmp_path / "out", workers, epochs=60)
