"""`evenpace lab bench predictors`: replays, errors, times."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lab.bench import predictor_errors as bench
from lab.trace_contention import ContentionTraceConfig, contention_trace
from lab.traces import write_trace
from predictors import PREDICTORS, PredictorOptions
from tests.evenpace.commands import invoke
from tests.fits import Learner


@pytest.fixture(autouse=True)
def few_predictors(monkeypatch):
    """Only the predictors that do not learn, and the tests' own: the others take minutes."""
    for name in set(PREDICTORS) - {"memoryless", "ema"}:
        monkeypatch.delitem(PREDICTORS, name)


@pytest.fixture
def learner(monkeypatch):
    """A predictor `learner` among the others; the list of those that were made."""
    made = []

    def make(options, models):
        made.append(Learner(options))
        return made[-1]

    monkeypatch.setitem(PREDICTORS, "learner", make)
    return made


def rmse(errors):
    """Root mean square."""
    return math.sqrt(sum(error**2 for error in errors) / len(errors))


# -- replays


def test_a_replay_is_what_a_manager_would_do(learner):
    """Iteration k's speeds come with the usage at the beginning of k + 1; fits are made when they are due."""
    trace = contention_trace(ContentionTraceConfig(workers=3, iterations=60))
    grid = bench.lay_out(trace, 20)
    options = PredictorOptions(first_fit=20, refit_every=15)
    steps = []
    with ThreadPoolExecutor(1) as executor:
        done = bench.replay("learner", grid, options, executor, lambda: steps.append(None))
    assert len(steps) == 60
    speeds = np.array([worker.speeds for worker in trace.values()]).T
    cpu = np.array([worker.cpu_usage for worker in trace.values()]).T
    memory = np.array([worker.memory_usage for worker in trace.values()]).T
    np.testing.assert_array_equal(learner[0].speeds, speeds[:59])
    np.testing.assert_array_equal([usage[0] for usage in learner[0].usage], cpu[1:])
    np.testing.assert_array_equal([usage[1] for usage in learner[0].usage], memory[1:])
    assert len(done.fit_seconds) == 3
    assert np.isnan(done.predictions[0]).all()
    for k in range(1, 60):
        fitted = {0: None, 1: 20, 2: 35, 3: 50}[(k >= 20) + (k >= 35) + (k >= 50)]
        expected = speeds[k - 1] if fitted is None else speeds[:fitted].mean(axis=0)
        assert done.predictions[k] == pytest.approx(expected)


# -- the command


def test_the_command_agrees_with_an_independent_computation(tmp_path):
    """EMA's and the last value's errors, the floor and the shares, worked out worker by worker."""
    trace = contention_trace(ContentionTraceConfig(workers=3, iterations=300, seed=9))
    path, out = tmp_path / "trace.csv", tmp_path / "figures.json"
    write_trace(trace, path)
    result = invoke(
        "lab",
        "bench",
        "predictors",
        "--trace",
        path,
        "--json",
        out,
        "--predictor",
        "memoryless",
        "--warm-up",
        40,
    )
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())

    errors = {"memoryless": {}, "ema": {}, "floor": {}}
    means = {}
    for worker, own in trace.items():
        speeds = own.speeds.tolist()
        averages, total, weight = [math.nan], 0.0, 0.0
        for speed in speeds:
            total, weight = 0.8 * total + 0.2 * speed, 0.8 * weight + 0.2
            averages.append(total / weight)
        said = {"memoryless": [math.nan, *speeds], "ema": averages, "floor": own.expected.tolist()}
        for name, values in said.items():
            errors[name][worker] = [values[k] - speeds[k] for k in range(40, 300)]
        means[worker] = sum(speeds[40:]) / 260

    def overall(name):
        return rmse([error / means[worker] for worker, own in errors[name].items() for error in own])

    assert figures["trace"] == {"source": str(path), "workers": 3, "iterations": 300}
    assert figures["options"] == {"first_fit": 500, "refit_every": 100, "warm_up": 40}
    assert figures["scored"] == {"workers": 3, "rows": 780}
    assert figures["floor"]["relative"] == pytest.approx(overall("floor"))
    assert list(figures["predictors"]) == ["memoryless", "ema"]
    for name, found in figures["predictors"].items():
        assert (found["fits"], found["failed_fits"], found["fit_s_median"]) == (0, 0, None)
        assert found["relative"]["rmse"] == pytest.approx(overall(name))
        assert found["relative"]["to_ema"] == pytest.approx(overall(name) / overall("ema"))
        closed = (overall("ema") - overall(name)) / (overall("ema") - overall("floor"))
        assert found["relative"]["gap_closed"] == pytest.approx(closed)
        assert found["pooled"]["rmse"] == pytest.approx(
            rmse([error for own in errors[name].values() for error in own])
        )
        for worker, score in found["workers"].items():
            assert score["rmse"] == pytest.approx(rmse(errors[name][worker]))
        assert f"{overall(name):.2%}" in result.output
        assert f"{closed:.0%}" in result.output
