"""A manager whose predictor learns: fits run beside the barrier rounds, and fitted models are kept."""

import math
import sys

import numpy as np
import pytest

import idl
from batchsize_manager.learning.saved_models import load_models
from batchsize_manager.policies import PolicyOptions
from batchsize_manager.service import ManagerConfig, ManagerService
from idl.translation import read_history
from predictors import DeviceKind, PredictorOptions, networks
from rpc.client import Client
from tests.services import MemberWorker, serving

JOB = MemberWorker.BATCH  # samples in each iteration


def narx(folder, **options):
    """Make a manager that predicts with NARX, fitted after 20 iterations, and keeps models in a folder."""
    learning = PredictorOptions(first_fit=20, refit_every=1000)
    return ManagerService(
        ManagerConfig(options=PolicyOptions("narx", learning=learning, **options), models=folder)
    )


def predictions(address, job):
    """Return the speeds predicted for each iteration of the only worker, oldest first."""
    client = Client(idl.batchsize_manager.BatchSizeManager, address, "manager")
    history = client.call("history", idl.batchsize_manager.HistoryRequest(job, 0, 1000))
    client.close()
    return [float(record.predicted_speeds[0]) for record in read_history(history)[1]]


@pytest.mark.ci
def test_what_was_learned_is_used_kept_and_used_again(tmp_path, monkeypatch, wait_until):
    """The job goes on while its model is fitted; the model is kept, and a later manager starts from it.

    The training set is built in the trainer's process; in the manager's, rounds would wait for it.
    """
    built_here = []
    monkeypatch.setattr(networks, "samples", built_here.append)
    with serving(narx(tmp_path)) as address:
        worker = MemberWorker(address)
        for _ in range(25):
            worker.iterate()
        (file,) = wait_until(lambda: list(tmp_path.glob("*.npz")), "the file of models")
        worker.iterate()
        predicted = predictions(address, worker.identity.job)
        worker.client.close()
    models = load_models(file)

    assert not built_here
    assert math.isnan(predicted[0])
    assert predicted[1:] == pytest.approx([JOB / 0.5] * 25, rel=0.02)
    assert models.keys() == {"narx", "ema"}
    assert list(models["narx"]) == [worker.identity.worker, DeviceKind("")]
    assert all(np.isfinite(array).all() for array in models["narx"]["good"].values())

    with serving(narx(tmp_path, models=models)) as address:
        worker = MemberWorker(address)
        for _ in range(3):
            worker.iterate()
        worker.client.close()


def test_curves_are_kept_when_a_job_ends_and_used_again(tmp_path, wait_until):
    """Models of a policy without fits are kept, too; a later job begins with its split."""

    def learned(**options):
        return ManagerService(ManagerConfig("learned", PolicyOptions(**options), models=tmp_path))

    with serving(learned()) as address:
        worker = MemberWorker(address)
        for _ in range(5):
            worker.iterate()
        worker.client.close()
        (file,) = wait_until(lambda: list(tmp_path.glob("*.npz")), "the file of models")
    models = load_models(file)

    assert models["learned"]["good"]["sizes"].tolist() == [JOB]
    assert models["learned"]["good"]["times"] == pytest.approx([0.5])
    with serving(learned(models=models)) as address:
        worker = MemberWorker(address)
        worker.iterate()
        assert predictions(address, worker.identity.job) == pytest.approx([JOB / 0.5], rel=0.02)
        worker.client.close()


def test_the_default_predictor_has_narx_where_its_parts_are_installed(monkeypatch, caplog):
    """Where they are not, one line says what is used instead, and NARX by name is refused."""
    assert PolicyOptions().predictor == "auto"
    learning = PredictorOptions(first_fit=20)

    def has_a_fit():
        predictor = PolicyOptions(learning=learning).make_predictor()
        predictor.set_workers(["w"])
        for speed in range(100, 125):
            predictor.observe(*np.array([[speed], [0.5], [0.5]]))
        assert np.isfinite(predictor.predict()).all()
        return predictor.due_fit() is not None

    assert has_a_fit()
    ManagerService(ManagerConfig())
    assert not caplog.text
    monkeypatch.setitem(sys.modules, "keras", None)
    assert not has_a_fit()
    ManagerService(ManagerConfig())
    (line,) = caplog.messages
    assert "ema, memoryless and arx is used, without narx, since keras is not installed" in line
    with pytest.raises(ValueError, match="predictor 'narx' needs keras, which is not installed: pip install"):
        PolicyOptions("narx")
