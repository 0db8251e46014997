"""The benchmark for GPU machines: that its parts run, on the CPU, and that none loses the others."""

import csv
import json
import os
import subprocess
import sys

import pytest

from tests import ROOT

RUN = ROOT / "lab" / "gpu" / "run.py"


# The first optimiser imports it; the parts, which are forked, then need not do so each.
PREPARED = (
    "import runpy, sys, torch._dynamo; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
)


def run(folder, *options, blocked=(), prepared=False):
    """Run it as a user would; its exit status and its results. Modules that are blocked are missing."""
    for module in blocked:
        text = f"raise ModuleNotFoundError('blocked', name={module!r})\n"
        (folder / f"{module}.py").write_text(text)
    done = subprocess.run(
        [
            sys.executable,
            *["-c", PREPARED] * prepared,
            RUN,
            "--json",
            folder / "out.json",
            "--quick",
            *options,
        ],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=560,
    )
    return done.returncode, json.loads((folder / "out.json").read_text()), done


@pytest.mark.release
def test_all_parts_run(tmp_path):
    """Each is done, or says that it needs a GPU; the step times are a table, too."""
    code, results, done = run(tmp_path, "--device", "cpu", "--csv", str(tmp_path / "out.csv"), prepared=True)
    assert code == 0, done.stdout + done.stderr
    statuses = {name: part["status"] for name, part in results.items()}
    assert set(statuses.values()) == {"ok"}
    assert len(statuses) == 6
    for by_number in results["at_once"]["result"].values():
        numbers = list(by_number["samples_per_s"])
        assert numbers in (["1", "2"], ["1"])  # a slow machine has time for one
        assert (by_number["fit"] is None) == (numbers == ["1"])
        assert numbers == ["1"] or by_number["fit"]["beta"] > 0
        assert str(by_number["chosen"]["at_once"]) in numbers
        assert 1 in by_number["chosen"]["tried"]
    by_workers = results["balancing"]["result"]
    assert sum(by_workers["2"]["leader_straggler"]["batch_sizes"]) == 4
    with (tmp_path / "out.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["model"] for row in rows} == {"resnet32", "resnet50", "transformer"}
    assert all(float(row["step_time_s"]) > 0 for row in rows)


@pytest.mark.ci
def test_it_runs_without_the_packages_for_services(tmp_path):
    """A plain checkout on a machine with PyTorch and NumPy is enough."""
    blocked = ("thriftpy2", "psutil", "uvloop", "click", "rich", "keras", "matplotlib", "statsmodels")
    parts = ("machine", "timing")
    code, results, done = run(tmp_path, "--device", "cpu", "--parts", *parts, blocked=blocked)
    assert code == 0, done.stdout + done.stderr
    assert {part["status"] for part in results.values()} == {"ok"}
