"""Processes under a supervisor that starts again what has died, as a process manager would.

It knows how to start, stop and watch them, and not what they do.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from evenpace.processes import end_process

_RESTART_SECONDS = (0.2, 2.0)  # after which a process is started again, unless a fault says otherwise
_STOP_SECONDS = 60.0  # for a process to end by itself, before it is killed, which counts as a violation
_LAST_LINES = 15  # of a log, in messages
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class Ending:
    """A process that has ended without having been told to.

    Attributes:
        name: The process's.
        code: Its status, as `subprocess` has it.
        at: When that was seen, by the monotonic clock.
        log: The end of its log.
    """

    name: str
    code: int
    at: float
    log: str


@dataclass
class Supervised:
    """One process.

    Attributes:
        name: Unique.
        role: "worker", "shard" or "manager".
        command: Its arguments, given how often it was started before.
        environment: Added to ours.
        log: Where its output goes, one start after the other.
        starts: How often it was started.
        wanted: Whether it is to be started again when it ends.
    """

    name: str
    role: str
    command: Callable[[int], Sequence[str]]
    environment: Mapping[str, str]
    log: Path
    popen: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    wanted: bool = True
    due: float = 0.0
    since: float = 0.0

    @property
    def pid(self) -> int | None:
        """Of the running process; None if there is none."""
        return self.popen.pid if self.popen is not None else None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as stream:
            stream.write(f"--- start {self.starts}\n".encode())
            stream.flush()
            self.popen = subprocess.Popen(
                self.command(self.starts),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C in the terminal is for us
            )
        self.starts += 1
        self.since = time.monotonic()

    def tail(self) -> str:
        """The end of its log, of the last start."""
        last = self.log.read_text(errors="replace").rpartition("--- start")[2]
        return "\n".join(last.splitlines()[1:][-_LAST_LINES:])


@dataclass
class Supervisor:
    """Keeps processes running; to be asked regularly, by the thread that outlives them.

    Attributes:
        processes: By name, in the order in which they are started.
        draw: Decides after how many seconds a process is started again.
        endings: Those that nobody asked for.
    """

    processes: dict[str, Supervised]
    draw: random.Random
    endings: list[Ending] = field(default_factory=list)
    _killed: dict[int, float] = field(default_factory=dict)

    def poll(self) -> None:
        """Note what has ended, and start what is due."""
        now = time.monotonic()
        for process in self.processes.values():
            popen = process.popen
            if popen is not None and popen.poll() is not None:
                process.popen = None
                delay = self._killed.pop(popen.pid, None)
                if delay is None and (process.wanted or popen.returncode):
                    self.endings.append(Ending(process.name, popen.returncode, now, process.tail()))
                process.due = now + (self.draw.uniform(*_RESTART_SECONDS) if delay is None else delay)
            if process.popen is None and process.wanted and now >= process.due:
                process.start()

    def kill(self, name: str, seconds: float) -> "subprocess.Popen[bytes]":
        """Kill a running process, to be started again after so many seconds."""
        popen = self.processes[name].popen
        assert popen is not None
        self._killed[popen.pid] = seconds
        popen.kill()
        return popen

    def running(self, role: str) -> list[Supervised]:
        """Those of a role that have been started and have not ended."""
        return [p for p in self.processes.values() if p.role == role and p.popen is not None]

    def stop(self, role: str) -> None:
        """End all of a role, politely first."""
        for process in self.processes.values():
            if process.role == role:
                process.wanted = False
                if process.popen is not None:
                    end_process(process.popen, _STOP_SECONDS)


def state(pid: int) -> str:
    """What the kernel says of a process: "R", "S", "T" for stopped, "Z"; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def pause(pid: int) -> None:
    """Freeze a process."""
    os.kill(pid, signal.SIGSTOP)


def resume(pid: int) -> None:
    """Let a frozen process go on."""
    os.kill(pid, signal.SIGCONT)


def left_behind(folder: Path) -> list[str]:
    """Processes that still run with something of a folder in their command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if process.pid != os.getpid() and any(str(folder) in argument for argument in line):
                found.append(f"process {process.pid}, {' '.join(line)}")
    return found


def free_ports(count: int) -> list[int]:
    """TCP ports that services can have again and again.

    The kernel must not give them to anybody's outgoing connection while a service is away; nor may another
    run choose them that begins at the same time.
    """
    draw = random.Random()
    first = int(_EPHEMERAL.read_text().split()[0])
    free: list[int] = []
    while len(free) < count:
        port = draw.randrange(10_000, max(first, 10_100))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in free:
            free.append(port)
    return free
