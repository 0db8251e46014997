"""Terminals in which the blocks of a document are typed, as a reader would.

This module must not know what a document is.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests import zygote

# Run after each block: who trains in the background must end well, while services go on.
_WORKERS_END = r"""
workers_end() {
    jobs >"$1"
    local line
    while read -r line; do
        case $line in
            *Exit*"evenpace worker"*) echo "ended badly: $line"; return 1 ;;
            *Running*"evenpace worker"*) line=${line#[}; wait "%${line%%]*}" ;;
        esac
    done <"$1"
}
"""


class Terminal:
    """A bash, with job control, that takes one script after the other and stops where a command fails.

    Args:
        folder: Where it starts; it keeps its scripts and output in `folder/.terminals`.
        name: Unique in the folder.
        environment: Of its commands.
        through: A command to start the bash through, which becomes it.
    """

    def __init__(
        self, folder: Path, name: str, environment: Mapping[str, str], through: Sequence[str] = ()
    ) -> None:
        self._files = folder / ".terminals" / name
        self._files.mkdir(parents=True)
        self._scripts = 0
        self.log = self._files / "output"  # the file with everything that was printed
        with self.log.open("wb") as output:
            self._bash = subprocess.Popen(
                [*through, sys.executable, "-m", "tests.scripts.terminal_shell"],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._type(f"set -em\n{_WORKERS_END}")

    def printed(self) -> str:
        """All output so far, of everything that was started here."""
        return self.log.read_text(errors="replace").replace("\r\n", "\n")

    def start(self, script: str) -> Path:
        """Type a script; the file that has its status once it has ended."""
        self._scripts += 1
        path, status = self._files / f"{self._scripts}.sh", self._files / f"{self._scripts}.status"
        path.write_text(script)
        self._type(f"source {path} </dev/null\nworkers_end {self._files}/jobs\necho 0 >{status}")
        return status

    def run(self, script: str, seconds: float) -> None:
        """Type a script, and wait for its end.

        Raises:
            AssertionError: A command failed, or it did not end in time; with what was printed.
        """
        self.wait_for_end(self.start(script), seconds)

    def wait_for_end(self, status: Path, seconds: float) -> None:
        """Wait for the end of a script that was started (AssertionError: as from `run`)."""
        deadline = time.monotonic() + seconds
        while not status.exists():
            assert self._bash.poll() is None, f"a command failed:\n{self._told(status)}"
            assert time.monotonic() < deadline, f"not done in {seconds:g} s:\n{self._told(status)}"
            time.sleep(0.02)

    def wait_for(self, texts: Mapping[str, int], seconds: float) -> None:
        """Wait until each text was printed so many times.

        Raises:
            AssertionError: It was not, or the terminal has ended.
        """
        deadline = time.monotonic() + seconds
        while any(self.printed().count(text) < count for text, count in texts.items()):
            assert self._bash.poll() is None, f"a command failed:\n{self.printed()[-4000:]}"
            assert time.monotonic() < deadline, (
                f"{texts} not printed in {seconds:g} s:\n{self.printed()[-4000:]}"
            )
            time.sleep(0.02)

    def _told(self, status: Path) -> str:
        return f"{status.with_suffix('.sh').read_text()}\n{self.printed()[-4000:]}"

    def press_ctrl_c(self, seconds: float = 60) -> None:
        """End the command in the foreground, if there is one, as Ctrl-C does.

        Raises:
            AssertionError: Something goes on, such as a command in the background, which is not reached.
        """
        if not self._processes():
            return
        # The shell waits for its last command; each command has a process group of its own.
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # it has ended meanwhile
            for command in sorted(psutil.Process(self._bash.pid).children(), key=_began)[-1:]:
                os.killpg(command.pid, signal.SIGINT)
        deadline = time.monotonic() + seconds
        while left := self._processes():
            assert time.monotonic() < deadline, f"after Ctrl-C these go on: {_commands(left)}"
            time.sleep(0.05)

    def close(self, seconds: float = 60) -> list[str]:
        """Stop everything that was started here, as Ctrl-C does; what had to be killed after that."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(BrokenPipeError):
            self._bash.stdin.close()
        for process in self._processes():
            _signal(process, signal.SIGINT)
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        names = _commands(left)
        for process in left:
            _signal(process, signal.SIGKILL)
        self._bash.kill()
        self._bash.wait()
        return names

    def _processes(self) -> list[psutil.Process]:
        """Everything that runs in this terminal's session, but the bash itself, and who forks others.

        Who stands for what was forked is none of them either: it ends as that does.
        """
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                ours = os.getsid(process.pid) == self._bash.pid and process.pid != self._bash.pid
                if ours and process.status() != psutil.STATUS_ZOMBIE and not self._is_helper(process):
                    found.append(process)
        return found

    @staticmethod
    def _is_helper(process: psutil.Process) -> bool:
        words = " ".join(process.cmdline())
        return zygote.NAME in words or "tests/scripts/forked_command.py" in words

    def _type(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended; who waits for an outcome is told
            self._bash.stdin.write(text.encode() + b"\n")
            self._bash.stdin.flush()


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def _began(process: psutil.Process) -> tuple[float, int]:
    """When it began, in hundredths of a second, and its id, which is higher the later within one."""
    return process.create_time(), process.pid


def _commands(processes: Sequence[psutil.Process]) -> list[str]:
    """The command lines of those that have not ended."""
    lines = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return lines


def without_styles(text: str) -> str:
    """Return the printed text, without colours and moves of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
