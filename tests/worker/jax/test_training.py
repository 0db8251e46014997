"""Training with JAX over real processes: services, and workers that run a script."""

from pathlib import Path

import numpy as np
import pytest

from evenpace.local.cluster import LocalCluster
from tests import zygote
from tests.scripts import train_jax as script

SCRIPT = Path(script.__file__)
PATIENT = ("--silence", "120")  # of a manager: who is only slow, or held up, keeps its part


@pytest.mark.ci
def test_in_micro_batches_uneven_workers_equal_one_worker(tmp_path, wait_until):
    """Batch normalisation, dropout and random augmentation do not depend on the number of workers.

    Nor does what a loop draws before the micro-batches of an iteration, and after them.
    """
    services = LocalCluster(tmp_path, workers=2, shards=2, tolerance=0.0, manager_options=PATIENT)
    one = LocalCluster(tmp_path / "one", manager_options=PATIENT)
    with zygote.installed(zygote.FRAMEWORKS["jax"], "worker"), services as cluster, one:
        addresses = ",".join(map(str, (one.manager, *one.shard_addresses)))
        for i, limit in enumerate(("64", "20")):
            arguments = ["--out", str(tmp_path / f"{i}.npz"), *(["--alone", addresses] if i == 0 else [])]
            cluster.start_worker(f"w{i}", SCRIPT, arguments, options={"--max-batch-size": limit})
        wait_until(lambda: not cluster.check(), "the end of training")
    alone = np.load(tmp_path / "0.alone.npz")
    workers = [np.load(tmp_path / f"{i}.npz") for i in range(2)]
    for worker in workers:
        assert np.abs(worker["result"] - alone["result"]).max() < 1e-10
        assert worker["drawn"].tolist() == alone["drawn"].tolist()
        assert set(worker["shapes"]) <= {5, 4, 2}  # of micro-batches, which alone are compiled for
    sizes = np.array([worker["sizes"] for worker in workers])
    assert sizes.sum(axis=0).tolist() == [24, 24, 24, 24, 2] * 3 == alone["sizes"].tolist()
    assert np.ptp(sizes, axis=0).max() >= 5
    assert sizes.min() == 0
    losses = np.array([worker["losses"] for worker in workers])
    assert np.abs((losses * sizes).sum(axis=0) / sizes.sum(axis=0) - alone["losses"]).max() < 1e-10
