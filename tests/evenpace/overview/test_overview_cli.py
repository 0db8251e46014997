"""`evenpace status` and `evenpace top`, against real managers, on a real terminal."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios

import pytest

import idl
from tests.evenpace.commands import invoke
from tests.evenpace.overview.noisy_gradients import drawn_norms
from tests.services import (
    MemberWorker,
    address_of_our_own,
    manager_service,
    restartable_manager,
    serving,
)

_wire = idl.batchsize_manager


@pytest.fixture
def busy():
    """A manager with two jobs, one of which has done some iterations."""
    with serving(manager_service()) as address:
        workers = [MemberWorker(address, name) for name in ("first", "second")]
        for _ in range(30):
            workers[0].iterate()
        yield address
        for worker in workers:
            worker.close()


# -- status


def test_status_lists_the_jobs_or_shows_one(busy):
    """A line for each job, or one with its workers, the reasons for their verdicts, and its events."""
    done = invoke("status", "--manager", busy)
    assert done.exit_code == 0
    titles, *lines = [line.split() for line in done.output.splitlines()]
    assert titles[:3] == ["job", "state", "iteration"]
    assert [line[:3] for line in lines] == [["first", "running", "30"], ["second", "running", "0"]]
    done = invoke("status", "first", "--manager", busy)
    assert done.exit_code == 0
    for text in ("one worker: nothing to balance", "good joined, for iteration 0 on"):
        assert text in done.output
    assert re.search(r"good +working +even +10 ", done.output)


def test_status_for_machines_is_json(busy):
    """The keys are those of the figures, for each job."""
    done = invoke("status", "--json", "--manager", busy)
    assert done.exit_code == 0
    first, second = json.loads(done.output)["jobs"]
    assert (first["job"], first["state"], first["iteration"], first["behind"]) == ("first", "running", 30, 0)
    assert (first["figures"]["iterations"], first["figures"]["samples"]) == (30, 300)
    assert first["figures"]["workers"][0]["worker"] == first["members"][0]["worker"] == "good"
    assert (first["members"][0]["iteration"], first["members"][0]["maximum"]) == (30, 10**6)
    assert (first["exchange"], first["group_size"], first["group_changes"]) == ("parameter_server", None, [])
    assert first["events"][0]["text"] == "good joined, for iteration 0 on"
    assert (first["spec"]["total_batch_size"], first["spec"]["micro_batch"]) == (10, None)
    assert second["figures"]["speedup"] is None


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "top"])
def test_a_job_is_shown_with_its_gradient_noise(busy, command):
    """A line with the scale and what it says, and its goodput, once it is known, and else with the reason."""
    worker = MemberWorker(busy, "noisy")
    for iteration in range(100):
        worker.iterate(drawn_norms(iteration, [5, 5], 10.0))
    known, unknown = (invoke(command, job, "--manager", busy).output for job in ("noisy", "first"))
    worker.close()
    assert re.search(r"gradient noise: [\d.]+ samples; a batch twice as large would do 1\.", known)
    assert re.search(r"goodput [\d,]+ samples/s, efficiency 100%", known)
    assert "gradient noise: not measured: it takes two gradients in each step" in unknown
    assert "goodput" not in unknown


@pytest.mark.parametrize("command", ["status", "top"])
def test_a_job_or_manager_that_is_not_there_is_a_clear_line(busy, command):
    """Status 1, one line, and the name or the address."""
    done = invoke(command, "nothing", "--manager", busy)
    assert (done.exit_code, "there is no job 'nothing'" in done.output) == (1, True)
    address = address_of_our_own()
    done = invoke(command, "--manager", address)
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert str(address) in done.output


# -- top


_SCREENS = 40_000  # bytes at the end of what was written, which hold the last screen


class Terminal:
    """`evenpace top` on a terminal of its own."""

    def __init__(self, *arguments, lines=24, columns=140):
        self.raw = b""  # all that it wrote
        self._end, other = pty.openpty()
        self.resize(lines, columns)
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "evenpace", "top", *map(str, arguments)],
            stdin=other,
            stdout=other,
            stderr=other,
            env={name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
            | {"TERM": "xterm-256color"},
            start_new_session=True,
        )
        self.pid = self._popen.pid
        os.close(other)

    def resize(self, lines, columns=140):
        """Give it another size, as a window's frame does."""
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys):
        """Press keys."""
        os.write(self._end, keys)

    def read(self):
        """Read its output so far; return whether it goes on."""
        for _ in range(50):
            if not select.select([self._end], [], [], 0.02)[0]:
                break
            try:
                piece = os.read(self._end, 65536)
            except OSError:  # its other end is closed
                return False
            self.raw += piece
            if not piece:
                return False
        return True

    def shows(self, text):
        """Return whether the last screen that was drawn, or is being drawn, has a text."""
        self.read()
        screens = self.raw[-_SCREENS:].decode(errors="replace").split("\x1b[H")
        return any(re.search(text, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen)) for screen in screens[-2:])

    def ends(self):
        """Wait until it has ended and all is read; return its exit status."""
        while self.read():
            pass
        return self._popen.wait(timeout=120)

    def close(self):
        """End it, whatever it does."""
        self._popen.kill()
        self._popen.wait(timeout=120)
        os.close(self._end)


@contextlib.contextmanager
def terminal(*arguments, **options):
    """A terminal that is gone afterwards, whatever happens."""
    with contextlib.closing(Terminal(*arguments, **options)) as opened:
        yield opened


def test_top_is_live_and_obeys_keys(busy, wait_until):
    """`top` lists the jobs, shows the chosen one, follows it, goes back, and leaves a clean screen.

    On 80 columns it has what matters most, and cuts nothing off.
    """
    with terminal("--manager", busy, "--interval", 0.1, columns=80) as screen:
        wait_until(lambda: screen.shows(r"first +running +30"), "the list")
        screen.press(b"\x1b[B\r")
        wait_until(lambda: screen.shows("no iteration is complete yet"), "the second job")
        screen.press(b"b")
        wait_until(lambda: screen.shows("Enter show"), "the list again")
        screen.press(b"\x1b[A\r")
        wait_until(lambda: screen.shows(r"good +working +even +10 +500 +50\.0 +1\.00 +0"), "the first job")
        wait_until(lambda: screen.shows("good: has nobody to be compared with"), "what has no column")
        assert not screen.shows("…")
        worker = MemberWorker(busy, "third")
        screen.press(b"b")
        wait_until(lambda: screen.shows(r"third +running +0"), "a new job")
        worker.iterate()
        wait_until(lambda: screen.shows(r"third +running +1"), "its progress")
        worker.close()
        wait_until(lambda: screen.shows(r"third +ended"), "its end")
        screen.press(b"q")
        assert screen.ends() == 0
        assert screen.raw.rstrip().endswith(b"\x1b[?1049l")  # back from the other screen


def test_top_fits_the_terminal_whatever_its_size(wait_until):
    """Jobs that do not fit are counted, and a new size of the terminal is used."""
    with serving(manager_service()) as address:
        workers = [MemberWorker(address, f"job-{i:02}") for i in range(30)]
        with terminal("--manager", address, "--interval", 0.1, lines=20) as screen:
            wait_until(lambda: screen.shows(r"\.\.\. 15 more"), "what does not fit in 20 lines")
            screen.resize(30)
            wait_until(lambda: screen.shows(r"\.\.\. 5 more"), "what does not fit in 30 lines")
            screen.resize(50)
            wait_until(lambda: screen.shows("job-29"), "all of them")
            os.kill(screen.pid, signal.SIGINT)
            assert screen.ends() == 0
            assert screen.raw.rstrip().endswith(b"\x1b[?1049l")
        for worker in workers:
            worker.close()


@pytest.mark.ci
def test_top_outlives_its_manager(tmp_path, wait_until):
    """While the manager is away it says since when; then it goes on."""
    with restartable_manager(tmp_path) as manager, terminal("--manager", manager.address) as screen:
        wait_until(lambda: screen.shows("no jobs"), "the list")
        manager.kill()
        wait_until(lambda: screen.shows(r"cannot be reached since \d"), "the notice")
        manager.start()
        wait_until(lambda: not screen.shows("cannot be reached"), "the end of the notice")
        worker = MemberWorker(manager.address, "later")
        wait_until(lambda: screen.shows("later +running"), "a new job")
        worker.close()
        os.kill(screen.pid, signal.SIGINT)
        assert screen.ends() == 0
