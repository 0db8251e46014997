"""Processes of ours: started to log as this one does, and ended so that none stays behind."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evenpace.logs import options_in_force
from idl.errors import EvenpaceError, UnavailableError
from rpc.address import Address

_START_SECONDS = 60.0  # for a service to listen; importing torch takes seconds
_STOP_SECONDS = 5.0  # for processes to end by themselves, before they are killed
LISTENING = "listening on "  # what a service prints, followed by its address


class ProcessFailedError(EvenpaceError):
    """A process of the cluster ended with an error; the message has the end of its log."""


@dataclass
class Process:
    """One process of the cluster, and the file of its log."""

    name: str
    popen: "subprocess.Popen[bytes]"
    log: Path

    def failure(self) -> ProcessFailedError:
        """Return the error of its failure, with the end of its log."""
        tail = self.log.read_text(errors="replace").splitlines()[-15:]
        text = "\n  ".join(tail)
        code = self.popen.returncode
        return ProcessFailedError(f"{self.name} ended with status {code}; its log, {self.log}:\n  {text}")


def command_line(command: str, *arguments: str, program: Sequence[str] = ("evenpace",)) -> list[str]:
    """Return the command line of an `evenpace` command that logs as this process does and ends with it.

    Args:
        command: The command, such as "manager".
        arguments: The command's arguments.
        program: The module that runs the command line, followed by arguments of its own.
    """
    start = [sys.executable, "-m", *program]
    return [*start, *options_in_force(), command, "--parent", str(os.getpid()), *arguments]


def read_address(process: Process) -> Address:
    """Wait until a service prints the address where it listens.

    Raises:
        UnavailableError: It does not print it in time.
        ProcessFailedError: The process failed.
    """
    stream = process.popen.stdout
    assert stream is not None
    ready, _, _ = select.select([stream], [], [], _START_SECONDS)
    if not ready:
        raise UnavailableError(f"{process.name} did not start within {_START_SECONDS:g} s; see {process.log}")
    line = stream.readline().decode()
    if not line.startswith(LISTENING):
        process.popen.wait()
        raise process.failure()
    return Address.parse(line.removeprefix(LISTENING).strip())


def end_process(popen: "subprocess.Popen[bytes]", seconds: float = _STOP_SECONDS) -> None:
    """End a process by SIGTERM, or by SIGKILL if it has not ended after `seconds`."""
    with contextlib.suppress(ProcessLookupError):
        popen.send_signal(signal.SIGTERM)
        popen.send_signal(signal.SIGCONT)  # a stopped process would not handle SIGTERM
    deadline = time.monotonic() + seconds
    try:
        popen.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
