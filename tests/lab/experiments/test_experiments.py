"""The experiments: schemes under contention, as real clusters on a few hundred samples."""

import contextlib
import csv
import json
import shutil
import time
from functools import partial

import pytest
from rich.console import Console

from evenpace.local.cluster import LocalCluster
from lab.experiments import overhead, scheme_run
from lab.experiments.overhead import OverheadConfig
from lab.experiments.overhead import run as measure_overhead
from lab.observer import Observer
from lab.traces import read_trace
from predictors import PredictorOptions
from rpc.processes import ProcessFailedError
from tests.evenpace.commands import invoke
from tests.lab.experiments.samples import write_svmlight
from tests.scripts import keep_pace

pytestmark = pytest.mark.usefixtures("generated_once")

needs_stress_ng = pytest.mark.skipif(shutil.which("stress-ng") is None, reason="stress-ng is not installed")

ITERATIONS = 24


experiment = partial(invoke, "lab", "experiment", catch_exceptions=False)


@pytest.mark.ci
def test_a_service_that_dies_is_named_at_once(tmp_path):
    """Not only that it cannot be reached any more: its log says why."""
    with (
        LocalCluster(tmp_path) as cluster,
        contextlib.closing(Observer(cluster.manager, (), timeout=0.5)) as observer,
    ):
        poll = observer.poll

        def die_first():
            cluster["manager"].kill()
            cluster["manager"].popen.wait()
            return poll()

        observer.poll = die_first  # after the look at the processes, before that at the job
        with pytest.raises(ProcessFailedError, match="manager was killed by SIGKILL; its log"):
            next(scheme_run.followed(cluster, observer))


@pytest.fixture
def wait_for_the_observer(tmp_path, monkeypatch):
    """Let no run get far ahead of whoever follows it, and starts and ends the competitors."""
    keep_pace.hold_workers(monkeypatch, scheme_run, tmp_path / "seen")
    keep_pace.follow_observer(monkeypatch, scheme_run, tmp_path / "seen")


@needs_stress_ng
@pytest.mark.release
@pytest.mark.parametrize(
    "schemes", ["lb-bsp:ema,asp,flexrr", pytest.param("lb-bsp:auto,ssp,redundant", marks=pytest.mark.release)]
)
def test_contention_compares_schemes_on_one_schedule(tmp_path, wait_for_the_observer, schemes):
    """Every kind of scheme trains to its end under the same contention, and the files say how."""
    train, test = tmp_path / "train.svm", tmp_path / "test.svm"
    write_svmlight(train, 800)
    write_svmlight(test, 200, seed=1)
    schedule = tmp_path / "schedule.csv"
    schedule.write_text("worker,start,end,cpu,memory\n0,3,10,1,0\n1,8,16,0.5,0.2\n0,14,20,1,0\n")
    result = experiment(
        *("contention", "--workload", "svm", "--schemes", schemes, "--iterations", ITERATIONS),
        *("--shares", "0.3,0.3", "--batch-size", 400, "--schedule", schedule, "--first-fit", 20),
        *("--out", tmp_path / "out", "--", "--data", f"svmlight:{train}", "--test-data", f"svmlight:{test}"),
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    balanced, *others = schemes.split(",")
    before = ["bsp-one-by-one"] * (others[-1] == "flexrr")
    assert list(report["schemes"]) == ["bsp", balanced, *others[:-1], *before, others[-1]]
    for name, figures in report["schemes"].items():
        assert figures["iteration_s"] > 0, name
        assert figures["of_baseline"] > 0, name
        assert figures["tasks_started"] >= 1, name
        assert len(figures["curve"]) >= 2, name
        assert figures["accuracy"] > 0.5, name
    for name in ("bsp", balanced):
        figures = report["schemes"][name]
        assert figures["iterations"] == ITERATIONS
        assert figures["of_oracle"] >= 0.99
        assert figures["tasks_started"] == 3
        assert {sum(parts) for parts in zip(*batch_sizes(figures), strict=True)} == {400}
    assert report["schemes"]["bsp"]["of_baseline"] == 1
    assert report["schemes"]["bsp"]["relative_rmse"] is None
    assert report["schemes"][balanced]["relative_rmse"] > 0
    iterations = list(csv.DictReader((tmp_path / "out" / "iterations.csv").open()))
    assert sum(row["scheme"] == "bsp" for row in iterations) == 2 * ITERATIONS
    assert set(read_trace(tmp_path / "out" / "bsp" / "trace.csv")) == {"worker-0", "worker-1"}
    for picture in ("iteration-times.png", "convergence.png", "prediction.png"):
        assert (tmp_path / "out" / picture).stat().st_size > 1000


def batch_sizes(figures):
    """Return each worker's batch size in each iteration."""
    return [[row[0] for row in rows] for rows in figures["workers"].values()]


@pytest.mark.ci
def test_the_managers_part_is_measured_beside_fits(monkeypatch):
    """Rounds go on while a fit runs, and the share is that of the mean round."""
    busy = []

    class Trainer(overhead._Trainer):
        def is_busy(self):
            busy.append(super().is_busy())
            return busy[-1]

    def rounds(numbers, description):
        """Go on until there was a fit: the process that makes them takes its time to start."""
        yield from numbers
        until = time.monotonic() + 240
        while not any(busy[overhead._WARM_UP :]) and time.monotonic() < until:
            yield len(busy)

    monkeypatch.setattr(overhead, "_Trainer", Trainer)
    monkeypatch.setattr(overhead, "track", rounds)
    learning = PredictorOptions(first_fit=30, refit_every=30)
    config = OverheadConfig(workers=(6,), iterations=120, predictor="narx", learning=learning)
    (size,) = measure_overhead(config, Console(quiet=True))["sizes"]

    assert size["workers"] == 6
    assert 0 < size["p5_ms"] <= size["p50_ms"] <= size["p95_ms"]
    assert size["rounds_during_fits"] > 0
    assert size["share"] == pytest.approx(size["mean_ms"] / 1e3)
