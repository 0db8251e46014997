"""The faults as they are brought about, each with the evidence that it was.

Every class here begins a fault when it is made; `fired` is asked until there is evidence, and does again what
found nothing to befall; `lift` ends it.
"""

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from evenpace.lab.chaos import clocks, witness
from evenpace.lab.chaos.disks import Disk
from evenpace.lab.chaos.fault_schedule import Fault
from evenpace.lab.chaos.supervisor import Supervisor
from evenpace.lab.proxy import Link, Proxy
from evenpace.processes import Process, state

_CLOCK_TOLERANCE = 5.0  # seconds
_STOPPING_SECONDS = 60.0  # for a process to be seen stopped
_OUT = ("silent", "no member")  # others do its part
_SLOW = (2_000.0, 100_000.0)  # bytes per second


class Injection(Protocol):
    """A fault under way."""

    @property
    def moot(self) -> bool:
        """Whether there has been nothing so far that it could have befallen."""

    def fired(self) -> str | None:
        """The evidence that it has happened, once there is some."""

    def lift(self) -> None:
        """End it."""


class Kill:
    """SIGKILL; the supervisor starts the process again."""

    moot = False

    def __init__(self, fault: Fault, supervisor: Supervisor, name: str) -> None:
        self._popen = supervisor.kill(name, fault.seconds)

    def fired(self) -> str | None:
        """The status that it ended with."""
        code = self._popen.poll()
        return None if code is None else f"process {self._popen.pid} ended with status {code}"

    def lift(self) -> None:
        """The supervisor does so."""


class Freeze:
    """SIGSTOP, and SIGCONT in the end."""

    moot = False

    def __init__(self, process: Process) -> None:
        self._process = process
        process.pause()
        pid, deadline = process.pid, time.monotonic() + _STOPPING_SECONDS
        while (letter := state(pid)) != "T" and time.monotonic() < deadline:
            time.sleep(0.001)
        self._evidence = f"process {pid} has state {letter} in /proc" if letter == "T" else None

    def fired(self) -> str | None:
        """What the kernel said."""
        return self._evidence

    def lift(self) -> None:
        """Let it go on, if it was not killed meanwhile."""
        self._process.resume()


class FreezeUntilOut(Freeze):
    """SIGSTOP of a worker, until the manager itself says that it is out: its part goes to others.

    Args:
        process: The worker's.
        standing: How it stands, as the manager has it; None if that does not answer.
    """

    def __init__(self, process: Process, standing: Callable[[str], str | None]) -> None:
        super().__init__(process)
        self._standing = standing

    def fired(self) -> str | None:
        """What the kernel said, and the manager."""
        standing = self._standing(self._process.name) if self._evidence else None
        return f"{self._evidence}; to the manager it is {standing}" if standing in _OUT else None


class Impostor:
    """The command of a running process is run a second time, beside it: it must be refused, and end."""

    moot = False

    def __init__(self, process: Process) -> None:
        self._twin = replace(process, command=process.line(-1), log=process.log.with_suffix(".second"))
        self._twin.start()

    def fired(self) -> str | None:
        """How it was refused."""
        assert self._twin.popen is not None
        code, said = self._twin.popen.poll(), self._twin.tail()
        refused = re.search(r"worker '.+' is a member already|is in use by another", said)
        return f"ended with status {code}: {said.splitlines()[-1]}" if code and refused else None

    def lift(self) -> None:
        """End it, if it was let in."""
        self._twin.end(0.0)


class Cut:
    """Connections are reset, at once or within the next message; then new ones are refused for a while."""

    def __init__(self, fault: Fault, proxy: Proxy, link: Link) -> None:
        self._proxy, self._link = proxy, link
        self._within = fault.amount > 0.5
        self._passed = link.bytes
        proxy.do(self._begin)

    @property
    def moot(self) -> bool:
        """Whether no byte has come."""
        return self._link.bytes == self._passed

    def _begin(self) -> None:
        self._link.cut_within = self._within
        self._link.refusing = not self._within

    def fired(self) -> str | None:
        """How many connections ended."""
        if self._within:
            return None if self._link.cut_within else "connections reset within a message"
        count = self._proxy.do(self._link.cut)
        return f"{count} connections reset" if count else None

    def lift(self) -> None:
        """Let new ones come."""
        self._proxy.do(self._end)

    def _end(self) -> None:
        self._link.refusing = self._link.cut_within = False


class Slow:
    """Bytes wait: until the end, or for as long as a slow line would take."""

    def __init__(self, fault: Fault, proxy: Proxy, link: Link, *, stall: bool) -> None:
        self._proxy, self._link = proxy, link
        self._held, self._passed = link.held, link.bytes
        slowest, fastest = _SLOW
        self._rate = None if stall else slowest * (fastest / slowest) ** fault.amount
        proxy.do(self._begin)

    @property
    def moot(self) -> bool:
        """Whether no byte has come."""
        return self._link.bytes == self._passed

    def _begin(self) -> None:
        if self._rate is None:
            self._link.open.clear()
        else:
            self._link.throttle = self._rate

    def fired(self) -> str | None:
        """What had to wait."""
        held = self._link.held - self._held
        pace = "stalled" if self._rate is None else f"at {self._rate:.0f} bytes/s"
        return f"{held} bytes {pace}" if held else None

    def lift(self) -> None:
        """Let all pass."""
        self._proxy.do(self._end)

    def _end(self) -> None:
        self._link.throttle = math.inf
        self._link.open.set()


class HalfOpen:
    """One side's connections are reset; the other side hears nothing of it until the end."""

    def __init__(self, fault: Fault, proxy: Proxy, link: Link) -> None:
        self._proxy, self._link = proxy, link
        self._near_ends = fault.amount > 0.5

    @property
    def moot(self) -> bool:
        """Whether there is no connection."""
        return not self._link.connections

    def fired(self) -> str | None:
        """How many there were."""
        side = "the worker's" if self._near_ends else "the service's"
        count = self._proxy.do(lambda: self._link.half_open(self._near_ends))
        return f"{count} connections reset on {side} side only" if count else None

    def lift(self) -> None:
        """Tell the other side."""
        self._proxy.do(self._link.hear_again)


class BlackHole:
    """What comes is lost, on new connections, too; nobody is told, and what it has broken stays so."""

    def __init__(self, proxy: Proxy, link: Link) -> None:
        self._proxy, self._link = proxy, link
        self._lost = link.lost
        self._connections = proxy.do(link.swallow)

    @property
    def moot(self) -> bool:
        """Whether no byte has come."""
        return self._link.lost == self._lost

    def fired(self) -> str | None:
        """What was lost."""
        lost = self._link.lost - self._lost
        return f"{self._connections} connections fell silent, {lost} bytes lost" if lost else None

    def lift(self) -> None:
        """Let new connections through."""
        self._proxy.do(self._link.answer_again)


class Together:
    """Faults of one kind that befall several things at once, by their names."""

    def __init__(self, parts: Mapping[str, Injection]) -> None:
        self._parts = parts

    @property
    def moot(self) -> bool:
        """Whether there has been nothing that any could have befallen."""
        return all(part.moot for part in self._parts.values())

    def fired(self) -> str | None:
        """What there is to say of each."""
        said = {name: part.fired() for name, part in self._parts.items()}
        return "; ".join(f"{name}: {what}" for name, what in said.items() if what) or None

    def lift(self) -> None:
        """End all."""
        for part in self._parts.values():
            part.lift()


class FullDisk:
    """No room for a byte. What is deleted makes room, so it is filled again and again."""

    moot = False

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def fired(self) -> str | None:
        """What the last write met."""
        return self._disk.fill()

    def lift(self) -> None:
        """Make room."""
        self._disk.clear()


class ClockJump:
    """A process's wall clock jumps by some seconds, and back in the end."""

    moot = False

    def __init__(
        self, fault: Fault, offset: Callable[[float], None], read: Callable[[], float | None]
    ) -> None:
        self._seconds = fault.amount
        self._offset, self._read = offset, read
        offset(self._seconds)

    def fired(self) -> str | None:
        """How far its clock is from ours, as the process sees it."""
        seen = self._read()
        jump = None if seen is None else seen - time.time()
        if jump is None or abs(jump - self._seconds) > _CLOCK_TOLERANCE:
            return None
        return f"its clock is {jump:+.0f} s from ours"

    def lift(self) -> None:
        """Put it right."""
        self._offset(0.0)


def clock_jump(fault: Fault, process: Process) -> ClockJump:
    """Of a process that runs under `witness` and libfaketime."""

    def read() -> float | None:
        seen = witness.read(process.log.with_suffix(".clock"))
        return seen[1] if seen is not None and process.running and seen[0] == process.pid else None

    return ClockJump(fault, lambda s: clocks.set_offset(process.log.with_suffix(".offset"), s), read)
