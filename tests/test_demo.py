"""The real demo in small: processes, CPU limits, both trainings, the report."""

import json
import signal
import statistics
import subprocess
import sys

import psutil
import pytest

from tests.services import has_ended

KEYS = {
    "shares",
    "iterations",
    "total_batch_size",
    "even",
    "balanced",
    "speedup",
    "ideal_speedup",
    "parameters_max_abs_diff",
}


def demo(tmp_path, *options):
    """The command line of a small demo."""
    return [
        *(sys.executable, "-m", "evenpace", "demo", "--out", str(tmp_path / "run")),
        *("--json", str(tmp_path / "summary.json"), *options),
    ]


def waiting(record):
    """Seconds that an iteration's workers waited, together."""
    return sum(part["waiting_time"] for part in record["workers"].values())


def typical_waiting(run):
    """The median share of an iteration: one in which somebody was held up tells nothing of the others."""
    return statistics.median(waiting(record) / record["duration"] for record in run["iterations"])


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("kind", ["auto", "duty-cycle"])
def test_the_demo_balances_and_reports(tmp_path, kind):
    """Under either kind of limit the slow worker gets less, and both runs end with equal parameters."""
    command = demo(
        tmp_path, "--shares", "0.8,0.2", "--epochs", "2", "--batch-size", "180", "--limit-kind", kind
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=560)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of a core by " + ("stop/continue" if kind == "duty-cycle" else "") in done.stdout.replace(
        "\n", " "
    )
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) == KEYS
    assert summary["shares"] == [0.8, 0.2]
    assert summary["ideal_speedup"] == pytest.approx(2.5)
    assert summary["iterations"] == 16
    assert sum(summary["balanced"]["batch_sizes"]) == summary["total_batch_size"] == 180
    assert summary["balanced"]["batch_sizes"][0] > 2 * summary["balanced"]["batch_sizes"][1]
    assert summary["parameters_max_abs_diff"] < 1e-4
    assert summary["speedup"] > 1.2
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert typical_waiting(report["runs"]["balanced"]) < typical_waiting(report["runs"]["even"])
    for name, run in report["runs"].items():
        waited = sum(map(waiting, run["iterations"])) / sum(r["duration"] for r in run["iterations"])
        assert summary[name]["waiting_share"] == pytest.approx(waited / 2)
        assert [record["iteration"] for record in run["iterations"]] == list(range(16))
        for record in run["iterations"]:
            assert sum(part["batch_size"] for part in record["workers"].values()) == record["total"]
        assert run["progress"][-1]["iteration"] == 16
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_running(tmp_path, wait_until, number):
    """Ctrl-C, and SIGTERM, stop every process that the demo started."""
    with psutil.Popen(demo(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        wait_until(lambda: len(process.children()) >= 6, "the demo's manager, shard and workers")
        children = process.children(recursive=True)
        process.send_signal(number)
        assert process.wait(240) == 130
        assert b"Interrupted" in process.stderr.read()
    wait_until(lambda: all(map(has_ended, children)), "the children's end")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shares", "0.5,much"], "shares '0.5,much'"),
        (["--shares", "0.5,0"], "numbers from 0.01"),
        (["--data", "mnist:/nowhere"], "/nowhere"),
        (["--data", "imagenet"], "imagenet"),
        (["--batch-size", "5000"], "1437 training images"),
    ],
)
def test_wrong_options_are_named(tmp_path, options, message):
    """A wrong option ends the demo at once with one line that says what is allowed."""
    done = subprocess.run(demo(tmp_path, *options), capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
