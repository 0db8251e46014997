"""Jobs that are submitted to a Ray cluster by the real command, and what is left of them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil

from tests import ROOT
from tests.scripts.train_least_squares import trained_alone

SCRIPT = ROOT / "tests/scripts/train_least_squares.py"


class Command:
    """An `evenpace` command that runs in the background."""

    def __init__(self, folder, name, environment, *arguments):
        self.out = folder / f"{name}.out"  # file of all that it prints
        with self.out.open("w") as stream:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "evenpace", *map(str, arguments)],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=ROOT,
                start_new_session=True,
            )

    @property
    def text(self):
        """What it has printed so far, in one line, since terminals' width is no matter."""
        return re.sub(r"\s+", " ", self.out.read_text())

    def interrupt(self):
        """Send Ctrl-C."""
        self._popen.send_signal(signal.SIGINT)

    def terminate(self, *, group):
        """Send SIGTERM to its process group, as a supervisor may, or to all processes that it has started."""
        if group:
            os.killpg(self._popen.pid, signal.SIGTERM)
            return
        command = psutil.Process(self._popen.pid)
        for process in (command, *command.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()

    def end(self, seconds=120):
        """Wait for its end; the exit status."""
        return self._popen.wait(seconds)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()


class Jobs:
    """Commands about jobs on one cluster, whose storage and temporary files are in one folder.

    Args:
        environment: Variables with which the cluster is reached.
        address: The cluster's; None where each job starts its own.
    """

    def __init__(self, folder, environment, address=None):
        self.storage = folder / "storage"
        self._folder = folder
        self._environment = environment
        self._address = () if address is None else ("--address", address)
        self._count = 0

    def run(self, *arguments):
        """Start a command with the cluster's address."""
        self._count += 1
        words = 2 if arguments[0] == "job" else 1
        command = (*arguments[:words], *self._address, *arguments[words:])
        return Command(self._folder, f"{arguments[0]}-{self._count}", self._environment, *command)

    def submit(self, name, *options, iterations=40, pace=0.0, workers=2, script=SCRIPT, arguments=None):
        """Submit a small job, which writes its parameters."""
        if arguments is None:
            arguments = ("--iterations", iterations, "--pace", pace, "--out", self.out(name))
            arguments += ("--computed", self._computed(name))
        scale = ("--workers", workers, "--cpus-per-worker", 0.1)
        return self.run(
            "submit", *scale, "--storage", self.storage, "--name", name, *options, script, *arguments
        )

    def out(self, name):
        """The file of a job's parameters."""
        return self._folder / f"{name}.npy"

    def log(self, name, process="job"):
        """The log of a job's process, as it lies in the job's folder."""
        file = self.storage / name / "logs" / f"{process}.log"
        return file.read_text() if file.exists() else ""

    def computed(self, name):
        """The samples that a job's workers have computed, those that were computed again included."""
        return sum(int(line.split()[2]) for line in self._computed(name).read_text().splitlines())

    def _computed(self, name):
        return self._folder / f"{name}.computed"

    def assert_trained(self, name, iterations):
        """Check that a job ended with one process's parameters."""
        np.testing.assert_allclose(np.load(self.out(name)), trained_alone(iterations), rtol=0, atol=1e-12)


def left_folders(folder):
    """The actors' folders that are left."""
    return [*Path(folder).glob("evenpace-*")]
