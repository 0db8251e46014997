"""Training with Keras on TensorFlow over real processes."""

import importlib
import subprocess
import sys

import numpy as np
import pytest

from evenpace.local.cluster import LocalCluster
from idl.errors import UnusableFrameworkError
from tests import EXAMPLES, SCRIPTS, zygote

LIMITS = (120, 85)  # samples that each worker takes at most
STEPS, LAST, BATCH, EPOCHS = 6, 1, 120, 6  # of an epoch, the last on a smaller batch


@pytest.fixture(scope="module")
def trained(tmp_path_factory, wait_until):
    """Return the results of two uneven workers by job, in one cluster: importing takes long."""
    folder = tmp_path_factory.mktemp("keras")
    patient = ("--silence", "120")  # who is only held up keeps its part
    services = LocalCluster(
        folder, workers=len(LIMITS), shards=2, tolerance=0.0, predictor="memoryless", manager_options=patient
    )
    one = LocalCluster(folder / "one", manager_options=patient)
    with zygote.installed(zygote.FRAMEWORKS["keras"], "worker"), services as cluster, one:
        addresses = ",".join(map(str, (one.manager, *one.shard_addresses)))
        for i, limit in enumerate(LIMITS):
            arguments = ["--out", str(folder / str(i)), *(["--alone", addresses] if i == 0 else [])]
            options = {"--max-batch-size": str(limit)}
            cluster.start_worker(f"w{i}", SCRIPTS / "train_keras.py", arguments, options=options)
        wait_until(lambda: not cluster.check(), "the end of training")
    workers = range(len(LIMITS))
    return {job: [dict(np.load(folder / f"{i}-{job}.npz")) for i in workers] for job in ("fit", "micro")}


@pytest.mark.ci
def test_uneven_workers_equal_one_process_on_the_big_batch(trained):
    """`fit` ends as Keras alone, to rounding, is traced once, and goes through batches without a part."""
    sizes = [worker["sizes"] for worker in trained["fit"]]
    assert sum(part.sum() for part in sizes) == EPOCHS * ((STEPS - 1) * BATCH + LAST)
    assert [len(part) for part in sizes] == [EPOCHS * STEPS] * len(LIMITS)
    assert min(part.min() for part in sizes) == 0
    assert all(part.max() <= limit for part, limit in zip(sizes, LIMITS, strict=True))
    assert len(set(sizes[0])) >= 20
    for worker in trained["fit"]:
        assert np.abs(worker["variables"] - trained["fit"][0]["alone"]).max() < 1e-9
        assert int(worker["traces"]) == 1


@pytest.mark.ci
def test_in_micro_batches_uneven_workers_equal_one_worker(trained):
    """Batch normalisation, dropout and random augmentation do not depend on the number of workers.

    Each iteration has one logged loss, and the workers' mean is the loss that one worker logs.
    """
    workers = trained["micro"]
    for worker in workers:
        assert np.abs(worker["variables"] - workers[0]["alone_variables"]).max() < 1e-10
        assert int(worker["iterations"]) == 15
    sizes = np.array([worker["sizes"] for worker in workers])
    assert sizes.sum(axis=0).tolist() == [24, 24, 24, 24, 2] * 3
    assert np.ptp(sizes, axis=0).max() >= 5
    assert sizes.min() == 0
    losses = np.array([worker["losses"] for worker in workers]).reshape(-1, 3, 5)  # workers, epochs, steps
    # Keras logs the mean over the epoch so far.
    seen = sizes.reshape(-1, 3, 5).cumsum(axis=2)
    mean = (losses * seen).sum(axis=0) / seen.sum(axis=0)
    assert np.abs(mean - workers[0]["alone_losses"].reshape(3, 5)).max() < 1e-10
    assert np.array_equal([worker["epochs"] for worker in workers], losses[:, :, -1])


def test_the_core_imports_no_framework():
    """A worker with one framework does not import the others."""
    code = (
        "import sys, evenpace, worker.session, worker.data.slices, evenpace.context\n"
        "import batchsize_manager.service\n"
        "loaded = {'torch', 'tensorflow', 'keras', 'jax'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_another_backend_is_refused(monkeypatch):
    """With another backend of Keras, the import fails and names the variable to set."""
    importlib.import_module("predictors.keras_training")  # which has Keras on PyTorch
    for name in [name for name in sys.modules if name.startswith(("worker.keras.", "evenpace.keras"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UnusableFrameworkError, match="its backend is torch: set KERAS_BACKEND=tensorflow"):
        importlib.import_module("evenpace.keras")


def test_three_lines_make_the_example_distributed():
    """The example with evenpace differs from the ordinary one in three lines, beside its docstring."""
    plain, ours = (
        (EXAMPLES / name).read_text().split('"""', 2)[2].splitlines()
        for name in ("train_digits_keras.py", "train_digits_keras_evenpace.py")
    )
    added = [line for line in ours if line and line not in plain]
    assert len(added) == 3
    assert all("evenpace" in line for line in added)
