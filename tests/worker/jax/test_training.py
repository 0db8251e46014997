"""Training with JAX over real processes: services, and workers that run a script."""

import json
from pathlib import Path

import jax
import jax.flatten_util
import numpy as np
import optax
import pytest

from evenpace.local.cluster import LocalCluster
from idl.plan import JobSpec, permutation
from tests.scripts import train_jax as script

pytestmark = pytest.mark.usefixtures("framework_starts")

SCRIPT = Path(script.__file__)
EPOCHS = 5  # of 8 iterations each, the last of them on a smaller batch
PATIENT = ("--silence", "120")  # of a manager: who is only slow, or held up, keeps its part


@pytest.fixture(autouse=True)
def float64():
    """Enable float64 as the script does, and disable it for the tests that follow."""
    with jax.enable_x64(True):
        yield


def train_alone():
    """Train in one process on the whole batches, with optax itself."""
    images, labels = script.make_data()
    params = script.make_params()
    optimizer = script.make_optimizer(optax)
    state = optimizer.init(params)
    gradient_of = jax.jit(jax.grad(lambda params, batch: script.loss_fn(params, batch).mean()))
    spec = JobSpec(script.SAMPLES, script.BATCH, script.SEED)
    for epoch in range(EPOCHS):
        for batch in np.split(permutation(spec, epoch), range(script.BATCH, script.SAMPLES, script.BATCH)):
            gradient = gradient_of(params, (images[batch], labels[batch]))
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
    return np.asarray(jax.flatten_util.ravel_pytree(params)[0])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, framework_starts, wait_until):
    """The folder with the results of three uneven workers in two jobs, and of one alone in the second."""
    folder = tmp_path_factory.mktemp("jax")
    services = LocalCluster(folder, workers=3, shards=2, tolerance=0.0, manager_options=PATIENT)
    with services as cluster, LocalCluster(folder / "one", manager_options=PATIENT) as one:
        addresses = ",".join(map(str, (one.manager, *one.shard_addresses)))
        for i, limit in enumerate(("64", "20", "7")):
            arguments = ["--out", str(folder / f"{i}.npy"), *(["--alone", addresses] if i == 0 else [])]
            cluster.start_worker(f"w{i}", SCRIPT, arguments, options={"--max-batch-size": limit})
        wait_until(lambda: not cluster.check(), "the end of training")
    return folder


@pytest.mark.ci
def test_uneven_workers_equal_one_process_on_the_big_batch(trained):
    """Uneven, changing batches over three workers give the parameters of one process with optax."""
    alone = train_alone()
    notes = [json.loads((trained / f"{i}.json").read_text()) for i in range(3)]
    sizes = [note["sizes"] for note in notes]
    assert [sum(parts) for parts in zip(*sizes, strict=True)] == ([64] * 7 + [52]) * EPOCHS
    assert max(sizes[2]) <= 7 < min(sizes[0])
    assert len(set(sizes[0])) > 2
    for i in range(3):
        assert np.abs(np.load(trained / f"{i}.npy") - alone).max() < 1e-9
        assert len(notes[i]["traces"]) <= 2  # whatever the batch sizes
        assert not notes[i]["torch"]


@pytest.mark.ci
def test_in_micro_batches_uneven_workers_equal_one_worker(trained):
    """Batch normalisation, dropout and random augmentation do not depend on the number of workers.

    Nor does what a loop draws before the micro-batches of an iteration, and after them.
    """
    alone = np.load(trained / "0.alone.npz")
    workers = [np.load(trained / f"{i}.micro.npz") for i in range(3)]
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
