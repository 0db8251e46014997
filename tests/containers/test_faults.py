"""What happens to a job when a container goes: a worker's, the manager's."""

import numpy as np
import pytest

from tests.containers.engine import Cluster, docker
from tests.containers.test_training import assert_as_alone

pytestmark = [pytest.mark.containers, pytest.mark.slow]

KILLED = 137


def test_a_killed_worker_is_replaced(tmp_path, wait_until):
    """One container is killed and another started in the middle; all that remain end with one result."""
    epochs = 800
    with Cluster(tmp_path / "out", workers=3) as cluster:
        # Half a core each, so that the newcomer, which needs seconds to start, does not come too late.
        workers = {
            name: cluster.start_worker(name, "--epochs", str(epochs), cpus=0.5) for name in ("w0", "w1", "w2")
        }
        observer = cluster.observer()
        wait_until(lambda: observer.poll() and len(observer.iterations) > 5, "the first iterations", 120)
        docker("kill", workers["w1"].id)
        assert workers.pop("w1").wait() == KILLED
        wait_until(lambda: observer.poll() and observer.members == ["w0", "w2"], "the killed one's removal")
        workers["w3"] = cluster.start_worker("w3", "--epochs", str(epochs), cpus=1.0)
        assert {name: worker.wait(240) for name, worker in workers.items()} == {"w0": 0, "w2": 0, "w3": 0}
        observer.poll()
    assert any(event.startswith("w1 died") for event in observer.events)
    teams = [{part.worker for part in record.workers} for record in observer.iterations]
    assert len(teams) == epochs * 8
    assert teams[0] == {"w0", "w1", "w2"}
    assert {"w0", "w2", "w3"} in teams
    # All but the one iteration in which the worker was killed are whole.
    sums = [sum(part.batch_size for part in r.workers) == r.total for r in observer.iterations]
    assert sums.count(False) <= 1
    results = [np.load(tmp_path / "out" / f"{name}.npy") for name in workers]
    assert np.isfinite(results[0]).all()
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("how", ["asked to stop", "killed"])
def test_the_managers_container_is_restarted(tmp_path, wait_until, how):
    """The running job ends with an error that says why, and the next job trains as ever.

    The manager keeps its jobs in memory, so a new one knows nothing of them.
    """
    with Cluster(tmp_path / "out", workers=2) as cluster:
        workers = [cluster.start_worker(name, "--epochs", "100000") for name in ("w0", "w1")]
        observer = cluster.observer()
        wait_until(lambda: observer.poll() and len(observer.iterations) > 5, "the first iterations", 120)
        started = cluster.manager.inspect("State.StartedAt")
        if how == "killed":
            docker("kill", cluster.manager.id)
            assert cluster.manager.wait() == KILLED
            docker("start", cluster.manager.id)
        else:
            docker("restart", "--time", "30", cluster.manager.id)
        assert cluster.manager.inspect("State.StartedAt") != started
        assert [worker.wait(60) for worker in workers] == [1, 1]
        for worker in workers:
            assert "there is no job 'default'; join first" in worker.logs()
        assert not list((tmp_path / "out").iterdir())

        workers = {name: cluster.start_worker(name) for name in ("w2", "w3")}
        assert [worker.wait() for worker in workers.values()] == [0, 0]
    assert_as_alone(tmp_path / "out", workers)
