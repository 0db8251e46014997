"""Processes of ours: started, frozen, killed, started again and ended, each by its own id.

They log as this process does, and none of them stays behind. This module must not know what they do.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from idl.errors import EvenpaceError, UnavailableError
from rpc.address import Address
from rpc.logs import options_in_force
from rpc.writing import writing

_START_SECONDS = 60.0  # for a service to listen; importing torch takes seconds
_STOP_SECONDS = 5.0  # for processes to end by themselves, before they are killed
_LAST_LINES = 15  # of a log, in messages
LISTENING = "listening on "  # what a service prints, followed by its address


class ProcessFailedError(EvenpaceError):
    """A process ended with an error; the message has the end of its log."""


@dataclass(eq=False)
class Process:
    """One process from its first start to its end, through any number of restarts; a context manager."""

    name: str  # its name in messages
    # Its arguments, or a function that gives them, called with the number of starts before.
    command: Sequence[str] | Callable[[int], Sequence[str]]
    log: Path  # the file for its standard error and, unless it `listens`, its output; restarts append to it
    role: str = "worker"  # "manager", "shard" or "worker"
    environment: Mapping[str, str] = field(default_factory=dict)  # variables added to those of this process
    # Whether its standard output is a pipe to this process, on which a service prints its address.
    listens: bool = False
    hears: bool = False  # whether its standard input is a pipe from this process
    # Its last start; None before the first.
    popen: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    starts: int = field(default=0, init=False)  # how often it was started
    since: float = field(default=0.0, init=False)  # when it was started last, by the monotonic clock
    _logged: int = field(default=0, init=False)  # bytes of the log before the last start
    _address: Address | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def is_running(self) -> bool:
        """True if it was started and has not ended."""
        return self.popen is not None and self.popen.poll() is None

    @property
    def pid(self) -> int:
        """The id of its last start."""
        assert self.popen is not None, f"{self.name} was never started"
        return self.popen.pid

    @property
    def address(self) -> Address:
        """The address that it listens on; waits until the process has printed it.

        Raises:
            UnavailableError: It does not print it in time.
            ProcessFailedError: It failed.
        """
        if self._address is None:
            self._address = self._read_address()
        return self._address

    def line(self, starts: int) -> Sequence[str]:
        """Return the command line after `starts` starts."""
        return self.command(starts) if callable(self.command) else self.command

    def start(self) -> None:
        """Start it, or start it again after its end."""
        self._close_pipes()
        with self.log.open("ab" if self.starts else "wb") as stream:
            if self.starts:
                with writing(self.log):
                    stream.write(f"--- start {self.starts}\n".encode())
                    stream.flush()
            self._logged, self._address = stream.tell(), None
            self.popen = subprocess.Popen(
                self.line(self.starts),
                stdin=subprocess.PIPE if self.hears else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.listens else stream,
                stderr=stream,
                env={**os.environ, **self.environment},
                # Ctrl-C in the terminal is for us: we end the others, in order.
                start_new_session=True,
            )
        self.starts += 1
        self.since = time.monotonic()

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        assert self.popen is not None
        self.popen.kill()

    def pause(self) -> None:
        """Freeze it by SIGSTOP, unless it has ended."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on by SIGCONT, unless it has ended."""
        if self.popen is not None:
            self.popen.send_signal(signal.SIGCONT)

    def end(self, seconds: float = _STOP_SECONDS) -> None:
        """End it by SIGTERM, then SIGKILL; see `end_process`."""
        if self.popen is not None and self.popen.poll() is None:
            end_process(self.popen, seconds)
        self._close_pipes()

    def said(self) -> str:
        """Return its last start's log."""
        with self.log.open("rb") as stream:
            stream.seek(self._logged)
            return stream.read().decode(errors="replace")

    def tail(self) -> str:
        """Return the last lines of its last start's log."""
        return "\n".join(self.said().splitlines()[-_LAST_LINES:])

    def failure(self) -> ProcessFailedError:
        """Return an error that says how it ended, with the end of its log."""
        return ProcessFailedError(f"{self.end_in_words()}; {self._end_of_log()}")

    def end_in_words(self) -> str:
        """Return how it ended: "w0 ended with status 1", or "w0 was killed by SIGKILL"."""
        assert self.popen is not None
        status = self.popen.returncode
        if status < 0:
            return f"{self.name} was killed by {signal.Signals(-status).name}"
        return f"{self.name} ended with status {status}"

    def _end_of_log(self) -> str:
        text = self.tail().replace("\n", "\n  ")
        return f"its log, {self.log}:\n  {text}"

    def _read_address(self) -> Address:
        assert self.popen is not None
        assert self.popen.stdout is not None
        ready, _, _ = select.select([self.popen.stdout], [], [], _START_SECONDS)
        if not ready:
            raise UnavailableError(
                f"{self.name} did not start within {_START_SECONDS:g} s; {self._end_of_log()}"
            )
        line = self.popen.stdout.readline().decode()
        if not line.startswith(LISTENING):
            self.popen.wait()
            raise self.failure()
        return Address.parse(line.removeprefix(LISTENING).strip())

    def _close_pipes(self) -> None:
        for pipe in (self.popen.stdin, self.popen.stdout) if self.popen is not None else ():
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def command_line(
    command: str, *arguments: str, program: Sequence[str] = ("evenpace",), killed: bool = False
) -> list[str]:
    """Return what starts a command of ours, to log as this process does and to end with it.

    Args:
        command: The command, such as "manager".
        program: The module that runs the command line, followed by arguments of its own.
        killed: Whether it is killed when this process ends, instead of ending in good order.
    """
    start = [sys.executable, "-m", *program]
    parent = "--parent-kill" if killed else "--parent"
    return [*start, *options_in_force(), command, parent, str(os.getpid()), *arguments]


def end_process(popen: "subprocess.Popen[bytes]", seconds: float = _STOP_SECONDS) -> None:
    """End a process by SIGTERM, or by SIGKILL if it has not ended after `seconds`."""
    _ask_to_end(popen)
    _wait_or_kill(popen, seconds)


def end_all(processes: Sequence[Process], seconds: float = _STOP_SECONDS) -> None:
    """End processes, all at once, as `end_process` does; an exception meanwhile kills those that are left."""
    running = [popen for process in processes if (popen := process.popen) is not None and process.is_running]
    for popen in running:
        _ask_to_end(popen)
    until = time.monotonic() + seconds
    try:
        for popen in running:
            _wait_or_kill(popen, max(0.0, until - time.monotonic()))
    finally:
        for popen in running:
            _wait_or_kill(popen, 0.0)
        for process in processes:
            process.end()  # closes its pipes


def _ask_to_end(popen: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        popen.send_signal(signal.SIGTERM)
        popen.send_signal(signal.SIGCONT)  # a stopped process would not handle SIGTERM


def _wait_or_kill(popen: "subprocess.Popen[bytes]", seconds: float) -> None:
    try:
        popen.wait(seconds)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()


def state(pid: int) -> str:
    """Return the kernel's letter for a process: "R", "S", "T" for stopped, "Z"; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
