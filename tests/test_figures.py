"""Figures 6 to 8 of the paper, as real clusters on a few samples."""

import json
import os

import pytest
from click.testing import CliRunner

from evenpace import network
from evenpace.cli import cli
from evenpace.cli.values import by_workload
from evenpace.experiments import unequal
from tests.scripts import keep_pace

SCHEMES = ["bsp", "asp", "lb-bsp:proportional"]


def experiment(*arguments):
    """Run `evenpace experiment` in this process."""
    return CliRunner().invoke(cli, ["experiment", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """The file that holds workers back; see `keep_pace`."""
    file = tmp_path / "seen"
    keep_pace.hold_workers(monkeypatch, unequal, file)
    return file


@pytest.fixture
def wait_for_the_first_snapshot(seen, monkeypatch):
    """Let no run begin before its first snapshot has been taken, however late whoever takes it is."""
    take, start_workers = unequal._Follower._take, unequal._start_workers

    def start(*arguments):
        seen.unlink(missing_ok=True)
        start_workers(*arguments)

    def taken(follower, *arguments):
        take(follower, *arguments)
        keep_pace.tell(seen, 10**9)

    monkeypatch.setattr(unequal, "_start_workers", start)
    monkeypatch.setattr(unequal._Follower, "_take", taken)


@pytest.fixture
def wait_for_the_observer(seen, monkeypatch):
    """Let no run get far ahead of whoever follows it, and cuts the bandwidth in its middle."""
    keep_pace.follow_observer(monkeypatch, unequal, seen)


@pytest.mark.slow
def test_figure_6_compares_the_schemes_and_figure_7_draws_the_same_runs(
    tmp_path, wait_for_the_first_snapshot
):
    """Every scheme makes its updates and is evaluated from start to end; shares are those of BSP."""
    iterations = 20
    result = experiment(
        *("fig6", "--workloads", "digits", "--schemes", "asp,lb-bsp", "--policy", "proportional"),
        *("--shares", "0.4,0.15"),
        *("--iterations", iterations, "--batch-size", "digits=64", "--target", "digits=0.3"),
        *("--out", tmp_path, "--", "--samples", "640", "--test-samples", "120"),
    )
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "fig6.json").read_text())
    entry = figures["workloads"]["digits"]

    assert list(entry["schemes"]) == SCHEMES
    for name, values in entry["schemes"].items():
        (run,) = values["runs"]
        updates = [point["updates"] for point in run["curve"]]
        assert updates[0] == 0, name
        assert updates == sorted(updates), name
        assert updates[-1] == 2 * iterations or (updates[-1] > 2 * iterations and not values["synchronous"])
        assert run["curve"][-1]["epochs"] == pytest.approx(updates[-1] / 20)
        assert run["per_update_s"] > 0
        assert values["of_bsp"]["per_update_s"] == pytest.approx(
            values["per_update_s"] / entry["schemes"]["bsp"]["per_update_s"]
        )
    fast, slow = entry["schemes"]["lb-bsp:proportional"]["runs"][0]["batch_sizes"].values()
    assert fast > slow
    bsp, balanced = (entry["schemes"][name]["accuracy"] for name in ("bsp", "lb-bsp:proportional"))
    assert balanced == pytest.approx(bsp, abs=0.02)  # the same training
    for name in ("bsp", "lb-bsp:proportional"):
        assert 0 < entry["schemes"][name]["updates_to_target"] <= 2 * iterations
    assert (tmp_path / "fig6.png").stat().st_size > 1000
    assert "Figure 6: digits" in result.output

    again = experiment("fig7", "--report", tmp_path / "fig6.json", "--out", tmp_path)
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "fig7.json").read_text()) == figures
    assert (tmp_path / "fig7.png").stat().st_size > 1000
    assert "Figure 7: digits" in again.output


@pytest.fixture
def needs_network():
    """Skip where no network namespaces can be made."""
    try:
        with network.Network(1):
            pass
    except network.NetworkError as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.mark.slow
def test_figure_8_cuts_one_workers_bandwidth(tmp_path, needs_network, wait_for_the_observer):
    """The worker's iterations take far longer right after, its batches shrink, and no namespace stays."""
    result = experiment(
        *("fig8", "--workload", "digits", "--policy", "proportional", "--shares", "0.4,0.3,0.2"),
        *("--iterations", 50, "--batch-size", 200, "--cut-worker", 1, "--cut-to", 20),
        *("--out", tmp_path, "--", "--samples", "1400"),
    )
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "fig8.json").read_text())
    cut, before, after = figures["cut"], figures["before"], figures["after"]

    assert cut["worker"] == "worker-1"
    assert 25 <= cut["iteration"] < 50
    assert cut["slowdown"] > 1.5
    assert after["batch_sizes"]["worker-1"] < 0.7 * before["batch_sizes"]["worker-1"]
    assert after["batch_sizes"]["worker-0"] > before["batch_sizes"]["worker-0"]
    for part in zip(*figures["batch_sizes"].values(), strict=True):
        assert sum(part) == 200
    assert (tmp_path / "fig8.png").stat().st_size > 1000
    assert not any(f"ep{os.getpid():06x}" in tag for tag in network._existing())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fig6", "--workloads", "digits,best"), "no workload 'best'"),
        (("fig6", "--schemes", "flexrr"), "no scheme 'flexrr'"),
        (("fig6", "--workloads", "digits", "--target", "cifarnet=0.5"), "no workload 'cifarnet' here"),
        (("fig6", "--workloads", "digits", "--target", "2"), "--target '2'"),
        (("fig6", "--workloads", "digits", "--seeds", "1,1"), "seeds 1, 1"),
        (("fig6", "--workloads", "digits", "--seeds", "a"), "'a': must be a whole number"),
        (("fig6", "--workloads", "digits", "--batch-size", "2000"), "batch size 2000: digits has 1437"),
        (("fig6", "--workloads", "digits", "--batch-size", "3"), "batch size 3: must be at least one for"),
        (("fig7", "--report", __file__), "test_figures.py: not JSON"),
        (("fig7", "--report", "/nowhere/fig6.json"), "No such file"),
        (("fig8", "--workload", "digits", "--cut-worker", "4"), "cut of worker 4: there are 4 workers"),
        (("fig8", "--workload", "digits", "--iterations", "40", "--cut-at", "39"), "cut at iteration 39"),
        (("fig8", "--workload", "digits", "--batch-size", "2000"), "batch size 2000: digits has 1437"),
    ],
)
def test_mistakes_are_told_before_anything_starts(tmp_path, arguments, message):
    """The error names the value; no log was written."""
    result = experiment(*arguments, "--out", tmp_path / "out")

    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
    assert not list(tmp_path.rglob("*.log"))


def test_a_value_is_for_all_workloads_or_for_one():
    """The one that names a workload goes before, in any order."""
    assert by_workload("iterations", ["a=3", "5"], ["a", "b"], int) == {"a": 3, "b": 5}
    assert by_workload("data", ["b=cifar10:x=y"], ["a", "b"], str) == {"b": "cifar10:x=y"}
    assert by_workload("target", [], ["a"], float) == {}
