"""Training in containers: uneven ones, one with little bandwidth."""

import json
import os
import shutil
import statistics
import subprocess

import numpy as np
import pytest

from tests.containers.engine import Cluster, cpu_limit
from tests.float64 import assert_as_alone

pytestmark = [pytest.mark.containers, pytest.mark.slow]

BITS_PER_SECOND = 256_000


def test_uneven_containers_equal_one_process_on_the_big_batch(tmp_path, wait_until):
    """Containers with 1, 0.5 and 0.25 cores and uneven batches give the parameters of one process."""
    shares = {"w0": 1.0, "w1": 0.5, "w2": 0.25}
    limits = {"w0": "64", "w1": "20", "w2": "7"}
    with Cluster(tmp_path / "out", workers=4) as cluster:
        workers = {
            name: cluster.start_worker(name, cpus=share, options=["--max-batch-size", limits[name]])
            for name, share in shares.items()
        }
        for name, share in shares.items():  # the job waits for a fourth worker meanwhile
            assert cpu_limit(workers[name])[0] == share
        for name in ("w1", "w2"):
            wait_until(lambda it=workers[name]: cpu_limit(it)[1] > 0, f"the limit's effect on {name}")
        workers["w3"] = cluster.start_worker("w3", options=["--max-batch-size", "7"])
        assert [worker.wait() for worker in workers.values()] == [0] * 4
    sizes = [json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in workers]
    assert [sum(parts) for parts in zip(*sizes, strict=True)] == ([64] * 7 + [52]) * 7
    assert max(sizes[2]) <= 7 < min(sizes[0])
    assert_as_alone(tmp_path / "out", workers)


def in_network_of(container, *command):
    """Run a command in a container's network, and return its output."""
    pid = str(container.inspect("State.Pid"))
    return subprocess.run(
        ["nsenter", "--target", pid, "--net", *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="cutting a container's bandwidth needs root")
@pytest.mark.skipif(not shutil.which("tc"), reason="cutting a container's bandwidth needs tc, of iproute2")
def test_a_worker_with_little_bandwidth(tmp_path, wait_until):
    """A slow link makes a worker's batches smaller, and the parameters are those of one process."""
    with Cluster(tmp_path / "out", workers=2) as cluster:
        workers = {"cut": cluster.start_worker("cut")}
        rate = ["rate", f"{BITS_PER_SECOND}bit", "burst", "4kb", "latency", "1s"]
        in_network_of(workers["cut"], "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate)
        workers["free"] = cluster.start_worker("free")
        observer = cluster.observer()
        wait_until(lambda: observer.poll() and len(observer.iterations) >= 40, "40 iterations")
        (qdisc,) = json.loads(in_network_of(workers["cut"], "tc", "-s", "-j", "qdisc", "show", "dev", "eth0"))
        assert [worker.wait() for worker in workers.values()] == [0, 0]
        observer.poll()

    # The cut was in force: packets had to wait for it, and a gradient took what it takes at that rate.
    gradient = 8 * np.load(tmp_path / "out" / "cut.npy").nbytes  # bits
    assert qdisc["kind"] == "tbf"
    assert qdisc["overlimits"] >= 40
    assert 8 * qdisc["bytes"] > 40 * gradient
    times, sizes = {}, {}
    for name in workers:
        parts = [record.parts[name] for record in observer.iterations if name in record.workers]
        times[name] = statistics.median(part.batch_processing_time for part in parts)
        sizes[name] = statistics.mean(part.batch_size for part in parts[8:])  # after the first epoch
    assert times["cut"] > 0.8 * gradient / BITS_PER_SECOND > 2 * times["free"]
    assert sizes["cut"] < sizes["free"] / 3
    assert_as_alone(tmp_path / "out", workers)
