"""`evenpace lab bench predictors`: replays, errors, times."""

import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

from lab.bench import predictor_errors as bench
from lab.trace_contention import ContentionTraceConfig, contention_trace
from lab.traces import Series, write_trace
from predictors import PREDICTORS, PredictorOptions
from tests import ROOT
from tests.evenpace.commands import invoke
from tests.fits import Learner
from tests.services import has_ended

NAN = float("nan")


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


def series(iterations, speeds, expected=None):
    """Make one worker's series, with usage that tells the iteration."""
    iterations = np.array(iterations)
    nothing = np.full(len(iterations), NAN)
    return Series(
        iterations,
        np.array(speeds, dtype=float),
        iterations / 100,
        iterations / 200,
        nothing if expected is None else np.array(expected, dtype=float),
    )


def rmse(errors):
    """Root mean square."""
    return math.sqrt(sum(error**2 for error in errors) / len(errors))


# -- replays


def test_gaps_hold_what_is_known():
    """A worker without a row has no speed and the usage of its last row; it has its own warm-up."""
    grid = bench.lay_out(
        {"a": series([0, 1, 2, 5], [1, NAN, 3, 4]), "b": series([2, 3], [7, 8], [7.5, 8.5])}, warm_up=1
    )
    assert grid.workers == ("a", "b")
    assert grid.iterations.tolist() == [0, 1, 2, 3, 5]
    np.testing.assert_array_equal(grid.speeds.T, [[1, NAN, 3, NAN, 4], [NAN, NAN, 7, 8, NAN]])
    np.testing.assert_array_equal(grid.cpu_usage.T * 100, [[0, 1, 2, 2, 5], [2, 2, 2, 3, 3]])
    np.testing.assert_array_equal(grid.memory_usage.T * 200, [[0, 1, 2, 2, 5], [2, 2, 2, 3, 3]])
    np.testing.assert_array_equal(grid.expected.T, [[NAN] * 5, [NAN, NAN, 7.5, 8.5, NAN]])
    assert grid.scored.T.tolist() == [[False, False, True, False, True], [False, False, False, True, False]]


def test_a_trace_shorter_than_the_warm_up_is_refused():
    """The error names the warm-up and how long the trace is."""
    with pytest.raises(ValueError, match="warm-up 3: no speed is left to count, the longest worker has 3"):
        bench.lay_out({"a": series([0, 1, 2], [1, 2, 3]), "b": series([9], [1])}, warm_up=3)


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
        averages, total, weight = [NAN], 0.0, 0.0
        for speed in speeds:
            total, weight = 0.8 * total + 0.2 * speed, 0.8 * weight + 0.2
            averages.append(total / weight)
        said = {"memoryless": [NAN, *speeds], "ema": averages, "floor": own.expected.tolist()}
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


SLOW = """
import time
from tests.fits import Learner

class SlowFit:
    def run(self):
        print("learning", flush=True)
        time.sleep(600)

class Slow(Learner):
    def due_fit(self):
        return SlowFit() if super().due_fit() else None

if __name__ == "__main__":  # which the process that learns is not
    from evenpace.cli import main
    from predictors import PREDICTORS
    for name in set(PREDICTORS) - {"memoryless", "ema"}:
        del PREDICTORS[name]
    PREDICTORS["slow"] = lambda options, models: Slow(options)
    main()
"""


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_in_the_middle_of_a_fit_leaves_nothing_running(tmp_path, wait_until, number):
    """The process that learns ends with the benchmark, in whichever way that is stopped."""
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    command = [sys.executable, script, "lab", "bench", "predictors"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with psutil.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes) as process:
        while "learning" not in (line := process.stdout.readline()):
            assert line, "the benchmark has ended"
        children = process.children(recursive=True)
        process.send_signal(number)
        assert process.wait(120) == (-9 if number == signal.SIGKILL else 130)
    assert children
    wait_until(lambda: all(map(has_ended, children)), "the children's end")
