"""Whole runs of `evenpace lab chaos`, each a cluster of real processes."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

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
