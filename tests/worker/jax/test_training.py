"""Training with JAX over real processes: services, and workers that run a script."""

import json
import runpy
from pathlib import Path

import jax
import jax.flatten_util
import numpy as np
import optax
import pytest

from evenpace.local.cluster import LocalCluster
from idl.plan import JobSpec, permutation
from tests import EXAMPLES
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


def train_alone(optimizer_name):
    """Train in one process on the whole batches, with optax itself."""
    images, labels = script.make_data()
    params = script.make_params()
    optimizer = script.make_optimizer(optimizer_name, optax)
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
            arguments = ["--optimizer", "sgd", "--out", str(folder / f"{i}.npy"), "--micro-batches"]
            arguments += ["--alone", addresses] if i == 0 else []
            cluster.start_worker(f"w{i}", SCRIPT, arguments, options={"--max-batch-size": limit})
        wait_until(lambda: not cluster.check(), "the end of training")
    return folder


@pytest.mark.ci
def test_uneven_workers_equal_one_process_on_the_big_batch(trained):
    """Uneven, changing batches over three workers give the parameters of one process with optax."""
    alone = train_alone("sgd")
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


@pytest.mark.ci
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path, wait_until):
    """Saved with NumPy in the middle of an epoch, a job resumes with fewer workers on more shards."""
    arguments = ["--optimizer", "adamw", "--out"]
    with LocalCluster(tmp_path / "first", workers=2, manager_options=PATIENT) as cluster:
        for i in range(2):
            cluster.start_worker(f"w{i}", SCRIPT, [*arguments, str(tmp_path / f"{i}.npy"), "--stop-at", "19"])
        wait_until(lambda: not cluster.check(), "the checkpoint")
    with LocalCluster(tmp_path / "second", workers=1, shards=2) as cluster:
        resume = ["--resume", str(tmp_path / "0.npz")]
        cluster.start_worker("w", SCRIPT, [*arguments, str(tmp_path / "final.npy"), *resume])
        wait_until(lambda: not cluster.check(), "the end of training")
    assert len(json.loads((tmp_path / "final.json").read_text())["sizes"]) == 8 * EPOCHS - 19
    assert np.abs(np.load(tmp_path / "final.npy") - train_alone("adamw")).max() < 1e-9


@pytest.mark.ci
def test_the_example_trains_as_well_on_two_workers(tmp_path, wait_until, capsys):
    """Each worker of the example ends with the same accuracy, about that of the ordinary script."""
    with jax.enable_x64(False):
        runpy.run_path(str(EXAMPLES / "train_digits_jax.py"), run_name="__main__")
    alone = capsys.readouterr().out
    with LocalCluster(tmp_path, workers=2) as cluster:
        example = EXAMPLES / "train_digits_jax_evenpace.py"
        options = {"--granularity": "8"}
        workers = [cluster.start_worker(f"w{i}", example, options=options) for i in range(2)]
        wait_until(lambda: not cluster.check(), "the end of training")
        printed = [process.log.read_text().splitlines()[-1] for process in workers]
    assert printed[0] == printed[1]
    accuracy, reference = (
        float(line.removeprefix("accuracy ").rstrip("%\n")) for line in (printed[0], alone)
    )
    assert accuracy > 90
    assert abs(accuracy - reference) < 5
