"""Figures 6 to 8 of the paper, as real clusters on a few samples."""

import json
import os
import statistics
from functools import partial

import pytest

from lab import network
from lab.experiments import coordination, migration, scheme_run, unequal
from tests.evenpace.commands import invoke
from tests.lab.experiments.samples import write_svmlight
from tests.scripts import keep_pace

SCHEMES = ["bsp", "asp", "lb-bsp:proportional"]


experiment = partial(invoke, "lab", "experiment", catch_exceptions=False)


@pytest.fixture
def samples(tmp_path):
    """Make a workload's data: 640 samples with 20,000 features, of which few occur."""
    train, test = tmp_path / "train.svm", tmp_path / "test.svm"
    write_svmlight(train, 640, features=20_000)
    write_svmlight(test, 100, features=20_000, seed=1)
    return "--data", f"svmlight:{train}", "--test-data", f"svmlight:{test}"


@pytest.fixture
def seen(tmp_path):
    """The file that holds workers back; see `keep_pace`."""
    return tmp_path / "seen"


@pytest.fixture
def wait_for_the_first_snapshot(seen, monkeypatch):
    """Let no run begin before its first snapshot has been taken, however late whoever takes it is."""
    take, training = scheme_run.Snapshots.take, unequal.training

    def start(*arguments):
        seen.unlink(missing_ok=True)
        return training(*arguments)

    def taken(snapshots, *arguments):
        take(snapshots, *arguments)
        keep_pace.tell(seen, 10**9)

    monkeypatch.setattr(unequal, "training", start)
    monkeypatch.setattr(scheme_run.Snapshots, "take", taken)


@pytest.fixture
def runs(monkeypatch):
    """Make an experiment's runs, by the scheme's name."""
    kept = {}

    def keep(scheme, *arguments):
        kept[scheme.name] = unequal.run_unequal(scheme, *arguments)
        return kept[scheme.name]

    for module in (coordination, migration):
        monkeypatch.setattr(module, "run_unequal", keep)
    return kept


@pytest.mark.release
def test_figure_6_compares_the_schemes_and_figure_7_draws_the_same_runs(
    tmp_path, samples, monkeypatch, seen, wait_for_the_first_snapshot, runs
):
    """Every scheme makes its updates and is evaluated from start to end; shares are those of BSP."""
    keep_pace.hold_workers(monkeypatch, scheme_run, seen, worker_0=0.0005, worker_1=0.002)
    iterations = 20
    result = experiment(
        *("fig6", "--workloads", "svm", "--schemes", "asp,lb-bsp", "--policy", "proportional"),
        *("--shares", "0.8,0.6", "--iterations", iterations, "--batch-size", "svm=64"),
        *("--target", "svm=0.7", "--settle", "0.25", "--out", tmp_path, "--", *samples),
    )
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "fig6.json").read_text())
    entry = figures["workloads"]["svm"]

    assert list(entry["schemes"]) == list(runs) == SCHEMES
    for name, values in entry["schemes"].items():
        (run,) = values["runs"]
        updates = [point["updates"] for point in run["curve"]]
        assert updates == [snapshot.updates for snapshot in runs[name].snapshots], name
        assert updates[0] == 0, name
        assert updates == sorted(updates), name
        assert updates[-1] == 2 * iterations or (updates[-1] > 2 * iterations and not values["synchronous"])
        assert run["curve"][-1]["epochs"] == pytest.approx(updates[-1] / 20)
        if values["synchronous"]:
            durations = [record["duration"] for record in runs[name].records[5:]]
            assert run["per_update_s"] == pytest.approx(statistics.fmean(durations) / 2)
        assert values["of_bsp"]["per_update_s"] == pytest.approx(
            values["per_update_s"] / entry["schemes"]["bsp"]["per_update_s"]
        )
    fast, slow = entry["schemes"]["lb-bsp:proportional"]["runs"][0]["batch_sizes"].values()
    assert fast > slow
    assert fast + slow == 64
    bsp, balanced = (entry["schemes"][name]["accuracy"] for name in ("bsp", "lb-bsp:proportional"))
    assert balanced == pytest.approx(bsp, abs=0.02)  # the same training
    for name in ("bsp", "lb-bsp:proportional"):
        assert 0 < entry["schemes"][name]["updates_to_target"] <= 2 * iterations
    assert (tmp_path / "fig6.png").stat().st_size > 1000
    assert "Figure 6: svm" in result.output

    again = experiment("fig6", "--report", tmp_path / "fig6.json", "--out", tmp_path / "again")
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "again" / "fig6.json").read_text()) == figures
    for folder in (tmp_path, tmp_path / "again"):
        assert (folder / "fig7.png").stat().st_size > 1000
    for done in (result, again):
        assert "Figure 7: svm" in done.output


@pytest.mark.release
def test_figure_8_cuts_one_workers_bandwidth(tmp_path, samples, monkeypatch, seen, needs_network, runs):
    """The worker's iterations take far longer right after, its batches shrink, and no namespace stays."""
    keep_pace.hold_workers(monkeypatch, scheme_run, seen, worker_0=0.0005, worker_1=0.0005)
    keep_pace.follow_observer(monkeypatch, scheme_run, seen)  # which cuts in the middle
    result = experiment(
        *("fig8", "--workload", "svm", "--policy", "proportional", "--shares", "0.8,0.8"),
        *("--iterations", 32, "--batch-size", 160, "--cut-worker", 1, "--cut-to", 3),
        *("--out", tmp_path, "--", *samples),
    )
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "fig8.json").read_text())
    cut, before, after = figures["cut"], figures["before"], figures["after"]

    assert cut["worker"] == "worker-1"
    assert 16 <= cut["iteration"] < 32
    assert cut["slowdown"] > 1.5
    assert after["batch_sizes"]["worker-1"] < 0.7 * before["batch_sizes"]["worker-1"]
    assert after["batch_sizes"]["worker-0"] > before["batch_sizes"]["worker-0"]
    (run,) = runs.values()
    for name, sizes in figures["batch_sizes"].items():
        assert sizes == [record["workers"][name]["batch_size"] for record in run.records]
    for part in zip(*figures["batch_sizes"].values(), strict=True):
        assert sum(part) == 160
    assert (tmp_path / "fig8.png").stat().st_size > 1000
    assert not any(f"ep{os.getpid():06x}" in tag for tag in network._existing())
