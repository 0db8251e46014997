"""The real demo in small: processes, CPU limits, both trainings, the report."""

import contextlib
import http.client
import json
import re
import signal
import statistics
import subprocess
import sys

import psutil
import pytest

from rpc.address import Address
from tests.evenpace.dashboard.live_pages import Page
from tests.scripts import lingering_demo
from tests.services import address_of_our_own, has_ended
from worker.resources import duty_cycle

KEYS = {"shares", "iterations", "total_batch_size", "even", "balanced", "speedup", "ideal_speedup"}
KEYS |= {"parameters_max_abs_diff"}


def demo(tmp_path, *options, module="evenpace"):
    """The command line of a small demo on two workers, one with four times the other's share."""
    return [
        *(sys.executable, "-m", module, "demo", "--shares", "0.4,0.1", "--out", str(tmp_path / "run")),
        *("--json", str(tmp_path / "summary.json"), *options),
    ]


def waiting(record):
    """Seconds that an iteration's workers waited, together."""
    return sum(part["waiting_time"] for part in record["workers"].values())


def typical_waiting(run):
    """The median share of an iteration: one in which somebody was held up tells nothing of the others."""
    return statistics.median(waiting(record) / record["duration"] for record in run["iterations"])


def typical_speeds(run):
    """Each worker's median, in samples per second."""
    return {
        name: statistics.median(
            part["batch_size"] / part["batch_processing_time"]
            for part in (record["workers"][name] for record in run["iterations"])
        )
        for name in run["batch_sizes"]
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory, wait_until):
    """Run a demo of two epochs; return its output, summary and report, and their folder.

    It first prints its page's address, and an open page sees both runs there: none ends before that.
    """
    folder = tmp_path_factory.mktemp("demo")
    # Between the runs nobody has the page's port: it must not be one that the kernel gives to others.
    options = ("--epochs", "2", "--batch-size", "180", "--http", str(address_of_our_own()))
    command = demo(folder, *options, module=lingering_demo.__name__)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            printed = process.stdout.readline()
            page = Page(
                re.search(r"http://127\.0\.0\.1:\d+/", printed)[0], process, Address("127.0.0.1", 0), folder
            )

            def shows_run_that_is(policy):
                try:
                    job = page.shows("default")
                except (OSError, http.client.HTTPException):
                    return False  # between the runs
                return job is not None and job["policy"] == policy

            for policy in ("even", "proportional"):
                wait_until(lambda: shows_run_that_is(policy), f"the run that is {policy}")  # noqa: B023 - at once
                process.stdin.write("seen\n")
                process.stdin.flush()
            printed += process.stdout.read()
            assert process.wait(240) == 0
        finally:
            process.terminate()
    summary = json.loads((folder / "summary.json").read_text())
    return printed, summary, json.loads((folder / "run" / "report.json").read_text()), folder


@pytest.mark.ci
def test_the_demo_shows_what_balancing_gains(finished):
    """Balanced is at least 0.6 times as fast as the workers' speeds allow, with the split that they ask for.

    Where the machine is too busy to give the workers what their limits allow, that is less than the ideal.
    """
    _, summary, report, _ = finished
    even, balanced = report["runs"]["even"], report["runs"]["balanced"]
    speeds = typical_speeds(balanced)
    allowed = sum(speeds.values()) / (2 * min(typical_speeds(even).values()))
    assert summary["speedup"] >= 0.6 * allowed
    fast, slow = (
        statistics.median(record["workers"][name]["batch_size"] for record in balanced["iterations"])
        for name in speeds
    )
    assert fast / slow > 0.5 * speeds["worker-0"] / speeds["worker-1"]
    if allowed >= 0.9 * summary["ideal_speedup"]:
        assert summary["balanced"]["batch_sizes"][0] > summary["balanced"]["batch_sizes"][1]
        assert typical_waiting(balanced) < 0.5 * typical_waiting(even)


@pytest.mark.ci
def test_the_demos_figures_are_its_records(finished):
    """Summary and report have what was recorded; both runs end with the same parameters, and have learned."""
    printed, summary, report, folder = finished
    assert "2 workers, limited to 0.4, 0.1 of a core by " in printed
    assert set(summary) == KEYS
    assert summary["shares"] == [0.4, 0.1]
    assert summary["ideal_speedup"] == pytest.approx(2.5)
    assert summary["iterations"] == 16
    assert sum(summary["balanced"]["batch_sizes"]) == summary["total_batch_size"] == 180
    # Another split is another order of adding up: equal to the last bit, they would be of one run.
    assert 0 < summary["parameters_max_abs_diff"] < 1e-4
    medians = {}
    for name, run in report["runs"].items():
        durations = [record["duration"] for record in run["iterations"]]
        medians[name] = statistics.median(durations)
        waited = sum(map(waiting, run["iterations"]))
        processed = sum(
            part["batch_processing_time"] for one in run["iterations"] for part in one["workers"].values()
        )
        assert summary[name]["waiting_share"] == pytest.approx(waited / (waited + processed))
        assert summary[name]["accuracy"] == run["progress"][-1]["accuracy"] > 0.85
        assert [record["iteration"] for record in run["iterations"]] == list(range(16))
        for record in run["iterations"]:
            parts = [part["batch_size"] for part in record["workers"].values()]
            assert sum(parts) == record["total"]
            assert name == "balanced" or abs(parts[0] - parts[1]) <= 1
        assert run["progress"][-1]["iteration"] == 16
    assert summary["speedup"] == pytest.approx(medians["even"] / medians["balanced"])
    page = (folder / "run" / "report.html").read_text()
    assert "<svg" in page
    assert "with no waiting at all, is 2.50 times" in page
    assert f"no parameter differs by more than {summary['parameters_max_abs_diff']:.2g}" in page


@pytest.mark.ci
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.release), signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_running(tmp_path, wait_until, number):
    """Ctrl-C, and SIGTERM, stop every process that the demo started, and those that limit its workers."""
    command = demo(tmp_path, "--limit-kind", "duty-cycle")
    with psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:

        def limits():
            """The shares that are in force."""
            shares = set()
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                    command = child.cmdline()
                    shares |= {command[-1]} if duty_cycle.__file__ in command else set()
            return shares

        wait_until(lambda: limits() == {"0.4", "0.1"}, "the demo's limited workers")
        children = process.children(recursive=True)
        assert len(children) >= 6  # a manager, a shard, and two workers with their duty cyclers
        process.send_signal(number)
        assert process.wait(240) == 130
        assert b"Interrupted" in process.stderr.read()
    wait_until(lambda: all(map(has_ended, children)), "the children's end")
