"""Training over real processes: services, and workers that run a script."""

import json

import numpy as np
import pytest

from evenpace.local.cluster import LocalCluster
from tests.float64 import EPOCHS, SCRIPT, train_alone, wait_for_end

PATIENT = ("--silence", "120")  # of a manager: who is only slow, or held up, keeps its part


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "shards", "lookahead"), [("sgd", 1, "0"), ("adam", 2, "3")])
def test_uneven_workers_equal_one_process_on_the_big_batch(
    tmp_path, wait_until, optimizer, shards, lookahead
):
    """Uneven, changing batches over three workers give the parameters of one process, to rounding.

    Their loading processes load ahead of what is planned.
    """
    options = (*PATIENT, "--lookahead", lookahead)
    services = LocalCluster(tmp_path, workers=3, shards=shards, tolerance=0.0, manager_options=options)
    with services as cluster:
        for i, limit in enumerate(("64", "20", "7")):
            arguments = ["--optimizer", optimizer, "--out", str(tmp_path / f"{i}.npy")]
            arguments += ["--num-workers", str(i)]  # 0, 1 and 2 loading processes
            cluster.start_worker(f"w{i}", SCRIPT, arguments, options={"--max-batch-size": limit})
        wait_for_end(cluster, wait_until)
    alone = train_alone(optimizer)
    sizes = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(3)]
    assert [sum(parts) for parts in zip(*sizes, strict=True)] == ([64] * 7 + [52]) * EPOCHS
    assert max(sizes[2]) <= 7 < min(sizes[0])
    for i in range(3):
        assert np.abs(np.load(tmp_path / f"{i}.npy") - alone).max() < 1e-9
