"""Supervisor of processes, which starts a dead one again, as a process manager would.

It knows nothing of what the processes do.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rpc.processes import Process

_RESTART_SECONDS = (0.2, 2.0)  # seconds after which a process is started again, unless a fault says otherwise
_ENDED_BY_SIGTERM = (0, 130, -signal.SIGTERM)  # statuses
_STOP_SECONDS = 60.0  # seconds for a process to end by itself, before it is killed, which is a violation


@dataclass(frozen=True)
class Ending:
    """End of a process that was not asked to end."""

    name: str  # name of the process
    code: int  # its status, as `subprocess` has it
    at: float  # when the end was seen, by the monotonic clock
    log: str  # last lines of its log


@dataclass
class Supervisor:
    """Supervisor of processes; to be polled regularly, by a thread that outlives them."""

    processes: dict[str, Process]  # processes by name, in the order in which they are started
    draw: random.Random  # source of the seconds after which a process is started again
    # Names of the processes that are started, and again when they end.
    wanted: set[str] = field(default_factory=set)
    # When ended processes are started again, by name, on the monotonic clock.
    due: dict[str, float] = field(default_factory=dict)
    endings: list[Ending] = field(default_factory=list)  # ends that were not asked for
    # By process, that which was asked to end: seconds until its next start, and the statuses to end with.
    _asked: dict[int, tuple[float, tuple[int, ...]]] = field(default_factory=dict)
    _noted: dict[str, int] = field(default_factory=dict)  # the start of which the end was noted, by name

    def poll(self) -> None:
        """Note the processes that have ended, and start those that are due."""
        now = time.monotonic()
        for name, process in self.processes.items():
            if self._is_up(process) and not process.is_running:
                self._note(process, now)
            if not self._is_up(process) and name in self.wanted and now >= self.due.get(name, 0.0):
                process.start()

    def kill(self, name: str, seconds: float) -> "subprocess.Popen[bytes]":
        """Kill a running process, to be started again after some seconds."""
        popen = self.expect_end(name, seconds, -signal.SIGKILL)
        popen.kill()
        return popen

    def expect_end(self, name: str, seconds: float, *codes: int) -> "subprocess.Popen[bytes]":
        """Expect a running process to end with one of these statuses, and start it again seconds later."""
        process = self.processes[name]
        assert self._is_up(process), f"{name} does not run"
        assert process.popen is not None
        _, earlier = self._asked.get(process.pid, (0.0, ()))
        self._asked[process.pid] = seconds, (*earlier, *codes)
        return process.popen

    def dismiss(self, name: str) -> None:
        """Tell a process to end by SIGTERM, and do not start it again."""
        self.wanted.discard(name)
        if self._is_up(self.processes[name]):
            self.expect_end(name, 0.0, *_ENDED_BY_SIGTERM).terminate()

    def staying(self, role: str) -> list[Process]:
        """Return the running processes of a role that were not asked to end."""
        return [p for p in self.running(role) if p.is_running and p.pid not in self._asked]

    def running(self, role: str) -> list[Process]:
        """Return the processes of a role that were started and not seen to have ended."""
        return [p for p in self.processes.values() if p.role == role and self._is_up(p)]

    def stop(self, role: str) -> None:
        """End all processes of a role: by SIGTERM, and by SIGKILL where that does not do."""
        for name, process in self.processes.items():
            if process.role == role:
                self.wanted.discard(name)
                process.end(_STOP_SECONDS)

    def _is_up(self, process: Process) -> bool:
        return process.popen is not None and self._noted.get(process.name) != process.starts

    def _note(self, process: Process, now: float) -> None:
        """Note an end, and when the process is started again."""
        assert process.popen is not None
        self._noted[process.name] = process.starts
        code, (delay, codes) = process.popen.returncode, self._asked.pop(process.pid, (None, ()))
        if code not in codes and (process.name in self.wanted or code):
            self.endings.append(Ending(process.name, code, now, process.tail()))
        self.due[process.name] = now + (self.draw.uniform(*_RESTART_SECONDS) if delay is None else delay)


def left_behind(folder: Path) -> list[str]:
    """Return the command lines of running processes that name the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if process.pid != os.getpid() and any(str(folder) in argument for argument in line):
                found.append(f"process {process.pid}, {' '.join(line)}")
    return found
