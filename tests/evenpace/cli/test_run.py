"""`evenpace run`: a whole job in one terminal, of which nothing stays behind."""

import contextlib
import re
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

from tests import EXAMPLES, zygote
from tests.evenpace.commands import invoke
from tests.scripts import train_least_squares
from tests.services import has_ended

SCRIPT = train_least_squares.__file__
FOR_EVER = (SCRIPT, "--workers", "2", "--", "--iterations", "1000000", "--pace", "0.01", "--out", "none")


class Run:
    """A run as a user starts it, whose output is read line by line."""

    def __init__(self, *words):
        command = [sys.executable, "-m", "evenpace", "run", *map(str, words)]
        # The process of `evenpace run`.
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []  # the lines so far

    def read_until(self, pattern):
        """Read lines up to the first that matches, and return the match."""
        for line in self.popen.stdout:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern!r} not in:\n" + "\n".join(self.lines))

    def manager(self):
        """Return the manager's address, once it listens."""
        return self.read_until(r"^run \| .*; the manager is at (\S+:\d+)\.")[1]

    def parts(self):
        """Return the processes that it has started so far, without what has forked them."""
        children = psutil.Process(self.popen.pid).children(recursive=True)
        return [child for child in children if zygote.NAME not in child.cmdline()]

    def end(self):
        """Read to the end, and return the exit status."""
        self.lines += self.popen.stdout.read().splitlines()
        return self.popen.wait()


@contextlib.contextmanager
def running(*words):
    """Run `evenpace run` for the length of the block at most."""
    run = Run(*words)
    try:
        yield run
    finally:
        run.popen.kill()
        run.popen.wait()
        run.popen.stdout.close()


@pytest.mark.slow
def test_a_job_runs_to_its_end(tmp_path):
    """Each line is behind its process's name; the status is 0, and the last lines say how it went."""
    out = tmp_path / "parameters.npy"
    with running(SCRIPT, "--workers", 2, "--", "--iterations", 30, "--out", out) as run:
        run.read_until(r"^manager \| .*worker-1 joined")
        parts = run.parts()
        assert run.end() == 0, run.lines
    names = {line.partition(" | ")[0] for line in run.lines}
    assert names == {"run", "manager", "ps-0"}  # the workers print nothing
    assert run.lines[0].startswith("run | 2 workers, 1 shard; the manager is at 127.0.0.1:")
    notes = [line for line in run.lines if line.startswith("run | ")]
    assert notes[1].startswith("run | default  ended")
    assert "iteration 30" in notes[2]
    assert len(parts) >= 4
    assert all(map(has_ended, parts))
    assert out.is_file()


@pytest.mark.ci
def test_workers_reduce_gradients_among_themselves():
    """With --all-reduce there is no shard, and the workers form a group."""
    script = EXAMPLES / "train_digits_ddp_evenpace.py"
    with running(script, "--workers", 2, "--all-reduce") as run:
        assert run.end() == 0, run.lines
    assert run.lines[0].startswith("run | 2 workers, all-reduce; the manager is at 127.0.0.1:")
    assert sum(bool(re.match(r"worker-\d \| accuracy 9\d", line)) for line in run.lines) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(number):
    """Ctrl-C and SIGTERM do the same: status 130, and nothing is left."""
    with running(*FOR_EVER) as run:
        run.read_until(r"^manager \| .*worker-1")
        parts = run.parts()
        run.popen.send_signal(number)
        assert run.end() == 130, run.lines
    assert run.lines[-1] == "Interrupted."
    assert len(parts) >= 4
    assert all(map(has_ended, parts))


FAILS = f"""
import importlib.util, os, signal, sys, time
from pathlib import Path
import numpy as np
import evenpace
from batchsize_manager.client import ManagerClient

spec = importlib.util.spec_from_file_location("training", {SCRIPT!r})
training = importlib.util.module_from_spec(spec)
spec.loader.exec_module(training)
fails, times, how, out = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])

def fail(session):
    ends, iteration = len(list(out.parent.glob("end-*"))), session.assignment.iteration
    if session.config.worker != fails and iteration in (15, 25) and how != "alone":
        with ManagerClient(session.config.manager) as manager:
            while manager.jobs().jobs[0].members < 2:
                time.sleep(0.01)
    if session.config.worker == fails and ends < times and iteration >= 10 * (ends + 1):
        (out.parent / f"end-{{ends}}").touch()
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("no such sample")

while how == "alone" and any(out.parent.glob("end-*")) and not out.exists():
    time.sleep(0.01)  # as whoever starts again does, until the other one has finished
session = evenpace.session()
for _ in training.go_through(session, 60, fail):
    pass
np.save(out, session.exchange.parameters)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "how", "said"),
    [
        (2, "killed", "was killed by SIGKILL"),
        pytest.param(1, "error", "ended with", marks=pytest.mark.ci),
    ],
)
def test_a_worker_that_fails_is_started_again(tmp_path, workers, how, said):
    """Each time a line says so, and the job ends with the parameters of one process."""
    script, out, name = tmp_path / "train.py", tmp_path / "parameters.npy", f"worker-{workers - 1}"
    script.write_text(FAILS)
    with running(script, "--workers", workers, "--restarts", 2, "--", name, 2, how, out) as run:
        run.read_until(rf"^run \| {name} {said}.*; started again, 1 of 2 times at most$")
        run.read_until(rf"^run \| {name} {said}.*; started again, 2 of 2 times at most$")
        parts = run.parts()
        assert run.end() == 0, run.lines
    errors = run.lines.count(f"{name} | ValueError: no such sample")
    assert errors == (2 if how == "error" else 0)
    assert np.load(out) == pytest.approx(train_least_squares.trained_alone(60), rel=1e-9)
    assert all(map(has_ended, parts))


@pytest.mark.ci
def test_a_worker_is_not_needed_once_the_others_have_finished_the_job(tmp_path):
    """It would wait for them for ever; the run ends well, as the job has."""
    script, out = tmp_path / "train.py", tmp_path / "parameters.npy"
    script.write_text(FAILS)
    with running(script, "--workers", 2, "--restarts", 1, "--", "worker-1", 1, "alone", out) as run:
        assert run.end() == 0, run.lines
    assert any(
        "worker-1 " in line and line.endswith("the others have finished the job") for line in run.lines
    )
    assert np.load(out) == pytest.approx(train_least_squares.trained_alone(60), rel=1e-9)


@pytest.mark.ci
def test_a_service_that_ends_ends_the_run_whatever_the_restarts(tmp_path):
    """It has the job's state, which another start would not have."""
    with running("--restarts", 5, *FOR_EVER) as run:
        run.read_until(r"^manager \| .*worker-1")
        next(part for part in run.parts() if "ps" in part.cmdline()).kill()
        assert run.end() == 1, run.lines
    assert run.lines[-1].startswith("Error: ps-0 was killed by SIGKILL, which ends the run")


@pytest.mark.slow
def test_nothing_outlives_a_run_that_is_killed(wait_until):
    """Not even a worker, although nobody could end it."""
    with running(*FOR_EVER) as run:
        run.read_until(r"^manager \| .*worker-1")
        parts = run.parts()
        run.popen.kill()
        wait_until(lambda: all(map(has_ended, parts)), "the end of all processes")


@pytest.mark.ci
def test_a_worker_that_fails_too_often_ends_the_run(tmp_path):
    """Its last end is the run's; its traceback comes behind the worker's name, and the error names it."""
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint('at 50%', end='\\r')\nraise ValueError(sys.argv[1:])\n")
    with running(script, "--restarts", 1, "--", "--lr", "3") as run:
        assert run.end() == 1
    assert run.lines.count("worker-0 | ValueError: ['--lr', '3']") == 2
    assert sum("started again" in line for line in run.lines) == 1
    assert run.lines[-1].startswith("Error: worker-0 ended with status 1, which ends the run")


@pytest.mark.slow
def test_a_script_without_a_loader_of_ours_is_told(tmp_path):
    """Workers that train nothing together are a mistake, even if each has ended well."""
    script = tmp_path / "train.py"
    script.write_text("print('trained alone', end='')\n")
    with running(script, "--all-reduce") as run:
        assert run.end() == 1
    assert run.lines[-2] == "worker-0 | trained alone"
    assert run.lines[-1].startswith("Error: no job was trained: the script has to go through a loader")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.py"], "training script 'missing.py': no such file"),
        ([], "Missing argument 'SCRIPT'"),
        (["train.py", "--epochs", "3"], "(The script's own options come after --.)"),
        (["train.py", "--workers", "0"], "0 is not in the range x>=1"),
        (["train.py", "--workers", "3", "--cpu-shares", "0.5,0.2"], "cpu_shares 0.5,0.2: must be as many"),
        (["train.py", "--shards", "2", "--all-reduce"], "give --shards or --all-reduce, not both"),
        (["train.py", "--manager-options", "--bogus 3"], "No such option"),
        (["train.py", "--http", "0.0.0.0:4380"], "others could reach the page at 0.0.0.0:4380 without TLS"),
    ],
)
def test_a_mistake_is_named_before_anything_is_started(tmp_path, monkeypatch, words, message):
    """The error is one of the user's, and has what was wrong."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    done = invoke("run", *words)
    assert done.exit_code in (1, 2), done.output
    assert message in done.output
    assert isinstance(done.exception, SystemExit)
