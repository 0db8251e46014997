"""A worker's installation is light: it trains with few packages, and says what to install for the rest."""

import email
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import ROOT
from tests.scripts import light_and_run, train_least_squares
from tests.scripts.train_least_squares import trained_alone
from tests.services import manager_service, serving, shard_service


def run_light(extra, *arguments):
    """Run a module where a worker and an extra are installed, and nothing else."""
    command = [sys.executable, light_and_run.__file__, extra, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)


@pytest.mark.ci
def test_a_job_is_trained_and_watched_without_a_framework(tmp_path):
    """Without any extra a worker trains, and with that for watching the job with its records is shown."""
    with serving(manager_service()) as manager, serving(shard_service()) as shard:
        trained = run_light(
            *("", "evenpace", "worker", "--manager", manager, "--ps", shard, "--name", "w1"),
            *(Path(train_least_squares.__file__), "--iterations", 30, "--out", tmp_path / "parameters.npy"),
        )
        assert trained.returncode == 0, trained.stderr
        assert np.abs(np.load(tmp_path / "parameters.npy") - trained_alone(30)).max() < 1e-9
        for command in ("status", "top"):
            shown = run_light("watch", "evenpace", command, "default", "--manager", manager)
            assert shown.returncode == 0, shown.stderr
            assert "w1" in shown.stdout


@pytest.mark.ci
@pytest.mark.parametrize(
    ("framework", "extra"), [("torch", "torch"), ("keras", "tensorflow"), ("jax", "jax")]
)
def test_a_framework_says_what_to_install(framework, extra):
    """Its adapter names the extra where the framework is missing."""
    run = run_light("", f"evenpace.{framework}")
    assert run.returncode == 1
    assert f": pip install 'evenpace[{extra}]'" in run.stderr


@pytest.mark.ci
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("manager", "manager"),
        ("top", "watch"),
        ("report", "pages"),
        ("cluster report", "ray,pages"),
        ("cluster dashboard", "ray,pages"),
        ("plan --profiles . --total 8 --micro-batch 1 V100", "manager"),
    ],
)
def test_a_command_says_what_to_install(command, extra):
    """The error is one line, with the extra to install."""
    run = run_light("", "evenpace", *command.split())
    assert run.returncode == 1
    assert f"which is not installed: pip install 'evenpace[{extra}]'" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["demo", "lab"])
def test_a_command_of_the_lab_says_that_it_needs_a_checkout(command):
    """The error is one line; what is installed does not list the command."""
    run = run_light("all", "evenpace", command)
    assert run.returncode == 1
    assert f"`evenpace {command}` is not in the package" in run.stderr
    assert "Traceback" not in run.stderr
    shown = run_light("", "evenpace", "--help")
    assert shown.returncode == 0
    assert re.search(r"^  run ", shown.stdout, re.MULTILINE)
    assert not re.search(rf"^  {command} ", shown.stdout, re.MULTILINE)


def test_the_long_description_can_be_read_elsewhere(tmp_path):
    """The package's description is README.md, without links and pictures that only the repository has."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    build = "from setuptools.build_meta import prepare_metadata_for_build_wheel as build; print(build('.'))"
    built = subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=300
    )
    text = (tmp_path / built.stdout.split()[-1] / "METADATA").read_text()
    metadata = email.message_from_string(text)
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = metadata.get_payload()
    assert "make demo" in description
    assert "<!--" not in description
    assert re.findall(r"\]\((?!https?:)[^)]*\)", description) == []
    assert metadata.get_all("Classifier")
