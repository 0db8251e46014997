"""Whole runs of `evenpace lab chaos`, each a cluster of real processes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lab.chaos.chaos_report import print_outcome
from lab.chaos.config import ChaosConfig
from lab.chaos.verdict import Verdict
from tests.services import has_ended


def start(tmp_path, *options):
    """The command, with all its files below a folder of the test's."""
    with (tmp_path / "out").open("wb") as out:
        return psutil.Popen(
            [sys.executable, "-m", "evenpace", "lab", "chaos", "--workers", "2", *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )


@pytest.mark.release
def test_nothing_is_lost_under_faults(tmp_path):
    """A short run: each kind of fault fires, nothing is violated, and nothing is left behind."""
    path = tmp_path / "chaos.json"
    kinds = {"kill", "freeze-until-out", "impostor", "cut", "stall", "black-hole", "partition"}
    options = ["--minutes", "0.1", "--seed", "372", "--faults", ",".join(sorted(kinds)), "--json", str(path)]
    with start(tmp_path, *options) as process:
        code = process.wait(timeout=560)
    assert code == 0, (tmp_path / "out").read_text()
    told = json.loads(path.read_text())
    assert told["violations"] == []
    assert told["jobs"]["job-0"]["iterations"] > 20
    assert told["jobs"]["job-0"]["compared"] > 2
    assert all(fault["evidence"] for fault in told["faults"])
    assert set(told["by_kind"]) == kinds
    assert all(counts["fired"] for counts in told["by_kind"].values())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["chaos.json", "out"]


@pytest.mark.release
@pytest.mark.parametrize(
    "options", [("--deterministic", "--jobs", "2"), ("--exact",), ("--sizer", "schedule")]
)
def test_what_a_run_promises_holds_under_kills_and_cuts(tmp_path, options):
    """Jobs come to the bits of a run without faults where sums are in order or exact; sizes may change."""
    path = tmp_path / "chaos.json"
    command = ["--minutes", "0.1", "--faults", "kill,cut", *options, "--json", str(path)]
    with start(tmp_path, *command) as process:
        code = process.wait(timeout=560)
    assert code == 0, (tmp_path / "out").read_text()
    told = json.loads(path.read_text())
    jobs = list(told["jobs"].values())
    if "--sizer" in options:
        assert jobs[0]["changes"] > 3
        assert jobs[0]["sizes"] == [72, 120]
    else:
        assert [job["same_bits"] for job in jobs] == [True] * (2 if "--jobs" in options else 1)
    assert all(counts["fired"] for counts in told["by_kind"].values())


@pytest.mark.release
@pytest.mark.parametrize("options", [(), ("--exact",)])
def test_nothing_is_lost_with_all_reduce(tmp_path, options):
    """A worker that joins, one that is drained, and kills, the manager's among them, cost no sample."""
    path = tmp_path / "chaos.json"
    kinds = ["kill", "freeze", "join", "drain"]
    command = ["--with", "all-reduce", "--minutes", "0.1", "--faults", ",".join(kinds), *options]
    with start(tmp_path, *command, "--workers", "3", "--json", str(path)) as process:
        code = process.wait(timeout=560)
    assert code == 0, (tmp_path / "out").read_text()
    told = json.loads(path.read_text())
    job = told["jobs"]["job-0"]
    assert job["iterations"] > 50
    assert job["compared"] > 2
    assert 0 < job["error"] < 1e-10
    assert job["same_bits"] is (True if options else None)
    assert set(told["by_kind"]) == set(kinds)
    assert all(counts["fired"] for counts in told["by_kind"].values())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["chaos.json", "out"]


@pytest.mark.ci
def test_an_interrupted_run_leaves_nothing(tmp_path, wait_until):
    """Ctrl-C ends the processes, and removes the files."""
    with start(tmp_path, "--minutes", "5") as process:
        children = wait_until(
            lambda: len(found := process.children(recursive=True)) >= 3 and found, "services"
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=240) == 130, (tmp_path / "out").read_text()
    wait_until(lambda: all(map(has_ended, children)), "the processes' end")
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_violation_is_told_with_how_to_repeat_it(capsys):
    """The output has the violations, the folder of the files, and the command that repeats the run."""
    fault = {"kind": "kill", "target": "w0", "evidence": None}
    faults = [fault, {**fault, "evidence": "gone"}]
    outcome = Verdict(
        ChaosConfig(1, 9, ("kill", "clock")), faults, {"kill": 1}, {"clock": "no libfaketime here"}
    )
    outcome.violations.append("ps-0: epoch 3: 2 samples not used exactly once")
    print_outcome(outcome, Path("/somewhere"))
    said = capsys.readouterr().out
    assert "Violations: 1." in said
    assert "- ps-0: epoch 3: 2 samples" in said
    assert "Files: /somewhere\nAgain: evenpace lab chaos --minutes 1 --seed 9 --faults kill,clock" in said
    assert "clock was left out: no libfaketime here" in said
    assert re.search(r"kill +│ +3 │ +1 │ +1 │", said)
    assert outcome.as_json()["by_kind"] == {"kill": {"faults": 3, "fired": 1, "without_target": 1}}
