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

from lab.ray_nodes import job_processes
from tests import ROOT
from tests.scripts.train_least_squares import trained_alone

SCRIPT = ROOT / "tests/scripts/train_least_squares.py"


class Command:
    """An `evenpace` command that runs in the background."""

    def __init__(self, folder, name, environment, *arguments):
        self.out = folder / f"{name}.out"  # file of all that it prints
        with self.out.open("w") as stream:
            self.popen = subprocess.Popen(
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
        self.popen.send_signal(signal.SIGINT)

    def terminate(self, *, group):
        """Send SIGTERM to its process group, as a supervisor may, or to all processes that it has started."""
        if group:
            os.killpg(self.popen.pid, signal.SIGTERM)
            return
        command = psutil.Process(self.popen.pid)
        for process in (command, *command.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()

    def end(self, seconds=120):
        """Wait for its end; the exit status."""
        return self.popen.wait(seconds)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()


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
        words = 2 if arguments[0] in ("job", "cluster") else 1
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

    def processes(self, name, process=None):
        """The processes that a job has, or that of one of its names."""
        return job_processes(self._environment, name, process)

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


class FormedGroup:
    """A job that trains by DDP in groups that its manager forms, as long as the test is in `with`.

    Args:
        jobs: The commands about jobs on its cluster.
        options: Further options of `evenpace submit`.
    """

    def __init__(self, jobs, name, wait_until, *options):
        self._jobs, self._name, self._wait_until = jobs, name, wait_until
        self._out = jobs.out(name).with_suffix("")
        self._stop = self._out / "stop"
        self._attempt = "0"  # of the last group
        self._out.mkdir(exist_ok=True)
        arguments = ("--optimizer", "sgd", "--pause", 0.02, "--stop", self._stop, "--out", self._out)
        script = ROOT / "tests/scripts/train_formed_group.py"
        self._command = jobs.submit(name, "--all-reduce", *options, script=script, arguments=arguments)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._command.__exit__(*exception)

    def _last(self, worker):
        """The attempt, the iteration and the size of the group of a worker's last batch."""
        file = self._out / f"{worker}.txt"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [lines[-1].split()[number] for number in (0, 1, 5)] if lines else ["0", "0", "0"]

    def trains_with(self, *workers):
        """Wait until these workers are a new group."""

        def is_new():
            last = [self._last(worker) for worker in workers]
            attempts = {attempt for attempt, _, _ in last}
            if len(attempts) > 1 or int(last[0][0]) <= int(self._attempt):
                return False
            return {size for _, _, size in last} == {str(len(workers))} and attempts.pop()

        self._attempt = self._wait_until(is_new, f"a new group of {', '.join(workers)}")

    @property
    def status(self):
        """The status with which the command ends."""
        return self._command.end()

    @property
    def text(self):
        """What the command has printed."""
        return self._command.text

    def resize(self, workers):
        """Have the job use up to so many workers."""
        with self._jobs.run("job", "resize", self._name, workers) as command:
            assert command.end() == 0, command.text

    def end(self):
        """Have the job end some iterations later, and check that `w0` has the parameters of one process."""
        import torch

        from tests.scripts.train_formed_group import trained_alone

        last = int(self._last("w0")[1]) + 20
        self._stop.with_suffix(".part").write_text(str(last))
        self._stop.with_suffix(".part").rename(self._stop)
        assert self._command.end() == 0, self._command.text
        end = torch.load(self._out / "w0.pt")
        parameters, average = trained_alone(0, last, "sgd")
        torch.testing.assert_close(dict(end["parameters"]), dict(parameters), rtol=0, atol=1e-12)
        torch.testing.assert_close(end["average"], average, rtol=0, atol=1e-12)


def left_folders(folder):
    """The actors' folders that are left."""
    return [*Path(folder).glob("evenpace-*")]
