"""Predictors: speeds in, the next iteration's speeds out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors import PREDICTORS, PredictorOptions, make_predictor
from predictors.ema import ExponentialMovingAverage
from tests.predictors.series import contended, noise_only, replay, rmse

NAN = float("nan")
SPEEDS = st.floats(1e-6, 1e6)
LEARNING = [name for name in PREDICTORS if name not in ("memoryless", "ema")]
FITTING = [name for name in LEARNING if name != "arx"]
QUICK = PredictorOptions(first_fit=40, refit_every=40, fit_window=80)


def observe(predictor, *speeds):
    """Let a predictor observe one iteration's speeds, with idle CPUs and memory."""
    values = np.array(speeds)
    predictor.observe(values, np.zeros(len(values)), np.zeros(len(values)))


def named(predictor, workers):
    """Give a predictor `workers` workers."""
    predictor.set_workers([f"w{i}" for i in range(workers)])
    return predictor


def new(kind, workers):
    """Make a predictor, by its name or its class, for `workers` workers."""
    return named(make_predictor(kind) if isinstance(kind, str) else kind(), workers)


@pytest.mark.parametrize("name", PREDICTORS)
def test_nothing_observed_is_nan(name):
    """A worker that was never measured is predicted as NaN, without a warning."""
    predictor = new(name, 3)

    assert np.isnan(predictor.predict()).all()
    observe(predictor, NAN, 2.0, NAN)
    assert np.array_equal(predictor.predict(), [NAN, 2.0, NAN], equal_nan=True)


@pytest.mark.parametrize("name", PREDICTORS)
def test_nan_rows_keep_their_prediction(name):
    """An iteration without samples changes nothing for that worker."""
    predictor = new(name, 2)
    observe(predictor, 3.0, 5.0)
    before = predictor.predict()
    observe(predictor, NAN, 6.0)

    assert predictor.predict()[0] == before[0]
    assert predictor.predict()[1] != before[1]


@pytest.mark.parametrize("name", PREDICTORS)
def test_workers_that_stay_keep_what_is_known(name):
    """Workers keep their state where their rows move; newcomers start unknown."""
    predictor = new(name, 3)
    observe(predictor, 1.0, 2.0, 3.0)
    observe(predictor, 4.0, 2.5, 3.5)
    before = predictor.predict()
    predictor.set_workers(["w2", "new", "w0"])

    assert np.array_equal(predictor.predict(), [before[2], NAN, before[0]], equal_nan=True)
    undisturbed = new(name, 1)
    for speed in (3.0, 3.5, 9.0):
        observe(undisturbed, speed)
    observe(predictor, 9.0, 9.0, 9.0)
    assert predictor.predict()[0] == undisturbed.predict()[0]


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_answer_is_the_callers_own(name):
    """Writing into a prediction does not change the predictor."""
    predictor = new(name, 1)
    observe(predictor, 2.0)
    predictor.predict()[:] = 0

    assert predictor.predict() == pytest.approx([2.0])


@pytest.mark.parametrize("name", PREDICTORS)
@settings(deadline=None)
@given(st.lists(SPEEDS, min_size=1, max_size=30))
def test_predictions_stay_within_what_was_seen(name, speeds):
    """No prediction lies outside the range of the measurements."""
    predictor = new(name, 1)
    for speed in speeds:
        observe(predictor, speed)

    assert min(speeds) * (1 - 1e-12) <= predictor.predict()[0] <= max(speeds) * (1 + 1e-12)


def feed(predictor, series, iterations):
    """Let a predictor observe some iterations of a series."""
    for k in iterations:
        predictor.observe(series.speeds[k], series.cpu[k], series.memory[k])


@pytest.mark.ci
@pytest.mark.parametrize("name", LEARNING)
def test_no_worker_is_predicted_worse_than_by_the_average(name):
    """Each worker's RMSE is within 2% of the moving average's where usage says nothing, also after fits."""
    series = noise_only(11, 300, 2)
    learned = rmse(
        replay(make_predictor(name, PredictorOptions(first_fit=150, refit_every=150)), series), series
    )
    average = rmse(replay(make_predictor("ema"), series), series)

    assert (learned <= 1.02 * average).all()


@pytest.mark.ci
@pytest.mark.parametrize("name", PREDICTORS)
@settings(deadline=None, max_examples=5)
@given(st.integers(0, 2**32 - 1))
def test_predictions_are_speeds_while_workers_come_and_go(name, seed):
    """Every measured worker gets a finite, positive prediction while workers join, leave, move and pause."""
    rng = np.random.default_rng(seed)
    predictor = make_predictor(name, PredictorOptions(first_fit=20, refit_every=30, fit_window=40, seed=1))
    measured = set()
    for k in range(60):
        if k % 12 == 0:
            there = [f"w{i}" for i in rng.permutation(6)[: rng.integers(1, 6)]]
            measured &= set(there)
            predictor.set_workers(there)
        speeds = rng.uniform(1, 100, len(there))
        speeds[rng.random(len(there)) < 0.3] = NAN
        measured |= {worker for worker, speed in zip(there, speeds, strict=True) if speed > 0}
        predictor.observe(speeds, rng.random(len(there)), rng.random(len(there)))
        predictions = predictor.predict()
        known = [worker in measured for worker in there]
        assert (np.isfinite(predictions) == known).all()
        assert (predictions[known] > 0).all()
        if fit := predictor.due_fit():
            try:
                predictor.take_fit(fit.run())
            except ValueError:
                predictor.take_fit(None)


@pytest.mark.parametrize("name", FITTING)
def test_fits_are_due_one_at_a_time(name):
    """The first fit is due after `first_fit` iterations, the next `refit_every` later, never two at once."""
    series = contended(13, iterations=130, workers=1)
    predictor = named(make_predictor(name, QUICK), 1)
    due = []
    for k in range(130):
        feed(predictor, series, [k])
        if predictor.due_fit() is not None:
            due.append(k + 1)
            assert predictor.due_fit() is None
            predictor.take_fit(None)  # it failed
    assert due == [40, 80, 120]


@pytest.mark.slow
@pytest.mark.parametrize("name", FITTING)
def test_fits_serve_workers_that_moved_meanwhile(name):
    """A fit's models reach the workers by name, though rows have moved and a member has gone."""
    series = contended(14, iterations=60, workers=3)
    stayed, moved = (named(make_predictor(name, QUICK), 3) for _ in range(2))
    for predictor in (stayed, moved):
        feed(predictor, series, range(60))
    found = stayed.due_fit().run()
    stayed.take_fit(found)
    assert moved.due_fit() is not None
    moved.set_workers(["w2", "new", "w0"])
    moved.take_fit(found)

    ours, theirs = moved.models(), stayed.models()
    fitted = "narx" if name == "auto" else name
    assert ours.keys() == theirs.keys() == {fitted, "ema"}
    assert ours[fitted].keys() == theirs[fitted].keys() == {"w0", "w1", "w2"}
    for worker, there in theirs[fitted].items():
        for array in there:
            assert np.array_equal(there[array], ours[fitted][worker][array])


@pytest.mark.parametrize("name", [name for name in PREDICTORS if name != "memoryless"])
def test_a_resumed_run_begins_where_the_last_one_ended(name):
    """The first prediction is the earlier moving average, which counts as one measurement."""
    before = new(name, 2)
    for speeds in ((1.0, 20.0), (2.0, 30.0), (3.0, 40.0)):
        observe(before, *speeds)
    models = before.models()
    assert models.keys() == {"ema"}
    resumed = make_predictor(name, models=models)
    resumed.set_workers(["w1", "new", "w0"])
    average = new("ema", 2)
    for speeds in ((1.0, 20.0), (2.0, 30.0), (3.0, 40.0)):
        observe(average, *speeds)
    slow, fast = average.predict()
    assert np.allclose(resumed.predict(), [fast, NAN, slow], rtol=1e-12, equal_nan=True)
    for _ in range(20):
        observe(resumed, 400.0, 5.0, 30.0)
    assert np.allclose(resumed.predict(), [400.0, 5.0, 30.0], rtol=0.02)


@settings(deadline=None)
@given(st.lists(SPEEDS, min_size=1, max_size=30), st.floats(0.01, 1))
def test_ema_is_the_weighted_mean(speeds, alpha):
    """A measurement that is k iterations old has weight (1 - alpha)^k, over the weights' sum."""
    predictor = new(lambda: ExponentialMovingAverage(alpha), 1)
    for speed in speeds:
        observe(predictor, speed)
    weights = (1 - alpha) ** np.arange(len(speeds))[::-1]

    assert predictor.predict()[0] == pytest.approx(np.average(speeds, weights=weights), rel=1e-9)
