"""The networks: the results of their fits, and how well they predict."""

import pickle
import tracemalloc

import numpy as np
import pytest

from predictors import PredictorOptions, make_predictor
from predictors.networks import Network
from tests.predictors.series import contended, replay, rmse

NETWORKS = ["simple_rnn", "lstm", "narx"]
QUICK = PredictorOptions(first_fit=40, refit_every=40, fit_window=80)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fit_that_is_sent_to_another_process_is_the_same(name):
    """A fit with the same seed has the same result however often it runs, and after it was pickled."""
    predictors = [make_predictor(name, QUICK) for _ in range(2)]
    series = contended(4, iterations=100, workers=2)
    here = replay(predictors[0], series)
    there = replay(predictors[1], series, lambda fit: pickle.loads(pickle.dumps(fit)).run())

    assert predictors[1].models()[name].keys() == {"w0", "w1"}
    assert np.array_equal(there, here, equal_nan=True)


@pytest.mark.parametrize("name", ["narx", "lstm", "arima"])
def test_handing_out_a_fit_copies_none_of_the_past(name):
    """Handing out a fit copies nothing, and later iterations do not change the fit."""
    predictor = make_predictor(name, PredictorOptions(first_fit=200))
    predictor.set_workers([f"w{i}" for i in range(200)])
    for _ in range(200):
        predictor.observe(*np.full((3, 200), 0.5))
    tracemalloc.start()
    try:
        fit = predictor.due_fit()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    handed_out = pickle.dumps(fit)
    predictor.observe(*np.full((3, 200), 0.6))
    predictor.set_workers(["w1", "new"])

    past = 200 * 200 * 8  # bytes of the speeds alone
    assert len(handed_out) > past
    assert most < past / 4
    assert pickle.dumps(fit) == handed_out


@pytest.fixture(scope="module")
def learned():
    """Return NARX models of two workers."""
    predictor = make_predictor("narx", PredictorOptions(first_fit=400))
    replay(predictor, contended(5, iterations=400, workers=2))
    return predictor.models()


def test_models_of_earlier_runs_predict_from_the_start(learned):
    """A worker of the same name beats the average by a tenth before any fit, and no fit has run."""
    series = contended(6, iterations=300, workers=2)
    predictor = make_predictor("narx", models=learned)
    warm = rmse(replay(predictor, series), series)

    assert (warm <= 0.9 * rmse(replay(make_predictor("ema"), series), series)).all()
    assert "narx" not in predictor.models()


def test_models_of_other_workers_are_scaled_to_the_speed(learned):
    """A borrowed model is scaled: ten times the speeds give ten times the predictions."""
    series = contended(6, iterations=50, workers=1)
    predictions = []
    for scale in (1.0, 10.0):
        predictor = Network("narx", PredictorOptions(), learned)
        predictor.set_workers(["unheard of"])
        for speed, cpu, memory in zip(series.speeds, series.cpu, series.memory, strict=True):
            predictor.observe(scale * speed, cpu, memory)
        predictions.append(predictor.predict())

    assert np.isfinite(predictions).all()
    assert predictions[1] == pytest.approx(10 * predictions[0], rel=1e-9)


def test_fits_start_from_earlier_models(learned):
    """A fit for workers with models of earlier runs starts from these, not from random weights."""
    series = contended(6, iterations=40, workers=2)
    predictor = Network("narx", QUICK, learned)
    fits = []
    replay(predictor, series, fits.append)

    for row, worker in enumerate(("w0", "w1")):
        assert np.array_equal(fits[0].start["hidden"][row], learned["narx"][worker]["hidden"])


@pytest.mark.ci
def test_young_workers_borrow_until_there_is_enough():
    """A worker with fewer than 16 samples is left out of the fit and predicts with another's model."""
    series = contended(7, iterations=60, workers=2)
    series.speeds[:50, 1] = np.nan
    predictor = Network("narx", PredictorOptions(first_fit=60), {})
    replay(predictor, series)

    assert predictor.models()["narx"].keys() == {"w0"}
    assert np.isfinite(predictor.predict()).all()


@pytest.mark.ci
def test_fits_leave_the_process_as_it_was():
    """A fit changes neither NumPy's nor PyTorch's random state, nor PyTorch's threads."""
    import torch

    predictor = make_predictor("narx", QUICK)
    fits = []
    replay(predictor, contended(8, iterations=40, workers=1), fits.append)
    fits[0].run()  # the first one imports what it needs
    before = (torch.get_num_threads(), torch.random.get_rng_state(), np.random.get_state()[1].copy())
    fits[0].run()

    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])
    assert np.array_equal(np.random.get_state()[1], before[2])
