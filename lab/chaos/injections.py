"""Injections: causing each kind of fault, with the evidence that it fired.

An instance of each class begins a fault when it is made. `fired` is called until there is evidence, and tries
again where there was nothing to befall; `lift` ends the fault.
"""
# ruff: noqa: D102 - methods without a docstring are those of `Injection`

import math
import re
import sqlite3
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from lab.chaos import clocks, witness
from lab.chaos.damage import DamagedState, SparedCopy
from lab.chaos.failing_writes import FailingWrites
from lab.chaos.fault_schedule import Fault
from lab.chaos.supervisor import Supervisor
from lab.proxy import Proxy, ProxyLink
from rpc.processes import Process, state

_CLOCK_TOLERANCE = 5.0  # seconds between the jump that was set and the one that the process sees, at most
_STOPPING_SECONDS = 60.0  # seconds until a process is seen stopped, at most
_DISK_SECONDS = 5.0  # seconds for which a disk may take no write after it was full
_PAUSE_SECONDS = 0.1
_MENDED = re.compile(r"job .+ was damaged, and is written again from its copy")
_OUT = ("silent", "no member")  # states in which others do a worker's part
_SLOW = (2_000.0, 100_000.0)  # bytes per second: the least and the most of a slow link


class Injection(Protocol):
    """Fault under way."""

    @property
    def is_moot(self) -> bool:
        """Return whether there has been nothing so far that the fault could have befallen."""
        return False

    @abstractmethod
    def fired(self) -> str | None:
        """Return the evidence that the fault has fired; None before."""

    def lift(self) -> None:
        """End the fault; by default, the supervisor does so when it starts a process again."""
        return


class Kill(Injection):
    """SIGKILL of a process, which the supervisor starts again."""

    def __init__(self, fault: Fault, supervisor: Supervisor, name: str) -> None:
        self._popen = supervisor.kill(name, fault.seconds)

    def fired(self) -> str | None:
        code = self._popen.poll()
        return None if code is None else f"process {self._popen.pid} ended with status {code}"


class Freeze(Injection):
    """SIGSTOP of a process, and SIGCONT at the end."""

    def __init__(self, process: Process) -> None:
        self._process = process
        process.pause()
        pid, deadline = process.pid, time.monotonic() + _STOPPING_SECONDS
        while (letter := state(pid)) != "T" and time.monotonic() < deadline:
            time.sleep(0.001)
        self._evidence = f"process {pid} has state {letter} in /proc" if letter == "T" else None

    def fired(self) -> str | None:
        return self._evidence

    def lift(self) -> None:
        self._process.resume()


class FreezeUntilOut(Freeze):
    """SIGSTOP of a worker until the manager, which is asked for its state, has given its part to others."""

    def __init__(self, process: Process, member_state: Callable[[str], str | None]) -> None:
        super().__init__(process)
        self._member_state = member_state

    def fired(self) -> str | None:
        member_state = self._member_state(self._process.name) if self._evidence else None
        return f"{self._evidence}; to the manager it is {member_state}" if member_state in _OUT else None


class Join(Injection):
    """Start of another worker, which is told to leave at the end."""

    def __init__(self, supervisor: Supervisor, name: str, trains: Callable[[Process], bool]) -> None:
        self._supervisor, self._process, self._trains = supervisor, supervisor.processes[name], trains
        supervisor.wanted.add(name)

    def fired(self) -> str | None:
        process = self._process
        return f"process {process.pid} trains" if process.is_running and self._trains(process) else None

    def lift(self) -> None:
        self._supervisor.dismiss(self._process.name)


class Drain(Injection):
    """Drain of a worker by an operator; the supervisor starts it again after its end."""

    def __init__(self, fault: Fault, supervisor: Supervisor, name: str, drain: Callable[[str], None]) -> None:
        self._popen = supervisor.expect_end(name, fault.seconds, 0)
        self._name, self._drain = name, drain

    def fired(self) -> str | None:
        code = self._popen.poll()
        if code is None:
            self._drain(self._name)
        return f"process {self._popen.pid} ended with status 0" if code == 0 else None


class Damage(Injection):
    """Damage to a shard's newest checkpoint, and SIGKILL, so that its next start needs an earlier one.

    The shard is stopped meanwhile, lest it replaces the file. Its log must say what is `noticed`, if any.
    """

    def __init__(
        self,
        fault: Fault,
        supervisor: Supervisor,
        name: str,
        find: Callable[[], SparedCopy | None],
        harm: Callable[[Path], str],
        noticed: str | None,
    ) -> None:
        self._fault, self._supervisor, self._process = fault, supervisor, supervisor.processes[name]
        self._find, self._harm, self._noticed = find, harm, noticed
        self._copy: SparedCopy | None = None
        self._done = ""  # to the file, in words
        self._starts = 0  # of the shard, until then
        self._strike()

    @property
    def is_moot(self) -> bool:
        """Return whether there has been no checkpoint that the job could lose."""
        return self._copy is None

    def _strike(self) -> None:
        freeze = Freeze(self._process)
        self._copy = self._find() if freeze.fired() else None
        if self._copy is not None:
            self._starts = self._process.starts
            self._done = self._harm(self._copy.path)
            self._supervisor.kill(self._process.name, self._fault.seconds)
        freeze.lift()

    def fired(self) -> str | None:
        if self._copy is None:
            if self._process in self._supervisor.staying("shard"):
                self._strike()
            return None
        if self._process.starts == self._starts:
            return None
        said, version = self._process.said(), self._copy.version
        line = rf"job {re.escape(self._copy.job)}: restored from its checkpoint of version (\d+)"
        restored = re.search(line, said)
        if restored is None or int(restored[1]) >= version:
            return None
        noticed = (self._noticed or "").format(version=version)
        if noticed not in said:
            return None
        return f"{self._done}; {noticed or 'gone on'}, then restored from version {restored[1]}"


class StateDamage(Injection):
    """SIGKILL of the manager, and damage to its state before its next start, which must mend it."""

    def __init__(
        self, fault: Fault, supervisor: Supervisor, name: str, harm: Callable[[], DamagedState | None]
    ) -> None:
        self._process = supervisor.processes[name]
        self._starts = self._process.starts
        supervisor.kill(name, fault.seconds).wait(_STOPPING_SECONDS)
        # The supervisor, which is polled by this thread, has yet to start it again.
        self._damage = _once_writable(harm)

    @property
    def is_moot(self) -> bool:
        """Return whether there was nothing to damage."""
        return self._damage is None

    def fired(self) -> str | None:
        if self._damage is None or self._process.starts == self._starts:
            return None
        said = self._process.said()
        noticed = _MENDED.search(said)
        if noticed is None or f"job {self._damage.job} is restored" not in said:
            return None
        return f"{self._damage.done}; then {noticed[0]}"


def _once_writable(harm: Callable[[], DamagedState | None]) -> DamagedState | None:
    """Do damage to a state; None where its disk, which may have been full, takes no write for long."""
    deadline = time.monotonic() + _DISK_SECONDS
    while time.monotonic() < deadline:
        try:
            return harm()
        except sqlite3.OperationalError:
            time.sleep(_PAUSE_SECONDS)
    return None


class Impostor(Injection):
    """Second run of a running process's command beside it: it must be refused, and end."""

    def __init__(
        self,
        process: Process,
        command: Sequence[str] | None = None,
        refused: str = r"worker '.+' is a member already|is in use by another",
    ) -> None:
        self._refused = refused
        self._twin = replace(
            process, command=command or process.line(-1), log=process.log.with_suffix(".second")
        )
        self._twin.start()

    def fired(self) -> str | None:
        assert self._twin.popen is not None
        code, said = self._twin.popen.poll(), self._twin.tail()
        refused = re.search(self._refused, said)
        return f"ended with status {code}: {said.splitlines()[-1]}" if code and refused else None

    def lift(self) -> None:
        self._twin.end(0.0)


def foreign_state(process: Process, state: Path) -> Impostor:
    """Start a service beside itself with a folder of state that another one is using, or has used."""
    command = list(process.line(-1))
    command[command.index("--state") + 1] = str(state)
    folder = re.escape(str(state))
    return Impostor(process, command, f"{folder} is (in use by another|the folder of a) (shard|manager)")


class _OnLink(Injection):
    """Fault of a link, which the proxy's own thread must touch."""

    def __init__(self, proxy: Proxy, link: ProxyLink) -> None:
        self._proxy, self._link = proxy, link
        self._passed = link.bytes

    @property
    def is_moot(self) -> bool:
        """Return whether no byte has passed the link."""
        return self._link.bytes == self._passed

    def _set(self, **fields: object) -> None:
        self._proxy.do(lambda: vars(self._link).update(fields))


class LinkCut(_OnLink):
    """Reset of connections, at once or within the next message; new ones are then refused for a while."""

    def __init__(self, fault: Fault, proxy: Proxy, link: ProxyLink) -> None:
        super().__init__(proxy, link)
        self._within = fault.amount > 0.5
        self._refused = link.refused
        self._set(cut_within=self._within, refusing=not self._within)

    def fired(self) -> str | None:
        if self._within:
            return None if self._link.cut_within else "connections reset within a message"
        if count := self._proxy.do(self._link.cut):
            return f"{count} connections reset"
        refused = self._link.refused - self._refused  # where there was none to be reset
        return f"{refused} connections refused" if refused else None

    def lift(self) -> None:
        self._set(cut_within=False, refusing=False)


class Slow(_OnLink):
    """Delay of bytes: until the end (a stall), or for as long as a slow line would take."""

    def __init__(self, fault: Fault, proxy: Proxy, link: ProxyLink, *, stall: bool) -> None:
        super().__init__(proxy, link)
        self._held = link.held
        slowest, fastest = _SLOW
        self._rate = None if stall else slowest * (fastest / slowest) ** fault.amount
        if self._rate is None:
            proxy.do(link.open.clear)
        else:
            self._set(throttle=self._rate)

    def fired(self) -> str | None:
        held = self._link.held - self._held
        pace = "stalled" if self._rate is None else f"at {self._rate:.0f} bytes/s"
        return f"{held} bytes {pace}" if held else None

    def lift(self) -> None:
        self._set(throttle=math.inf)
        self._proxy.do(self._link.open.set)


class HalfOpen(_OnLink):
    """Reset of one side's connections, of which the other side learns at the end alone."""

    def __init__(self, fault: Fault, proxy: Proxy, link: ProxyLink) -> None:
        super().__init__(proxy, link)
        self._near_ends = fault.amount > 0.5

    @property
    def is_moot(self) -> bool:
        """Return whether there is no connection."""
        return not self._link.connections

    def fired(self) -> str | None:
        side = "the worker's" if self._near_ends else "the service's"
        count = self._proxy.do(partial(self._link.half_open, self._near_ends))
        return f"{count} connections reset on {side} side only" if count else None

    def lift(self) -> None:
        self._proxy.do(self._link.end_half_open)


class BlackHole(_OnLink):
    """Loss of all bytes, on new connections, too, without an error at either end; they stay broken."""

    def __init__(self, proxy: Proxy, link: ProxyLink) -> None:
        super().__init__(proxy, link)
        self._lost = link.lost
        self._connections = proxy.do(link.swallow)

    @property
    def is_moot(self) -> bool:
        """Return whether no byte was lost."""
        return self._link.lost == self._lost

    def fired(self) -> str | None:
        lost = self._link.lost - self._lost
        return f"{self._connections} connections fell silent, {lost} bytes lost" if lost else None

    def lift(self) -> None:
        self._proxy.do(self._link.answer_again)


class Together(Injection):
    """Faults of one kind that befall several targets at once, by their names."""

    def __init__(self, parts: Mapping[str, Injection]) -> None:
        self._parts = parts

    @property
    def is_moot(self) -> bool:
        """Return whether there has been nothing that any of them could have befallen."""
        return all(part.is_moot for part in self._parts.values())

    def fired(self) -> str | None:
        said = {name: part.fired() for name, part in self._parts.items()}
        return "; ".join(f"{name}: {what}" for name, what in said.items() if what) or None

    def lift(self) -> None:
        for part in self._parts.values():
            part.lift()


class BadDisk(Injection):
    """Disk on which no write to a service's state succeeds."""

    def __init__(self, writes: FailingWrites) -> None:
        self._writes = writes
        writes.begin()

    @property
    def is_moot(self) -> bool:
        """Return whether there was nothing to write."""
        return not self._writes.failed

    def fired(self) -> str | None:
        failed = self._writes.failed
        return f"{failed} writes failed with EIO" if failed else None

    def lift(self) -> None:
        self._writes.end()


class Caused(Injection):
    """Fault that a function causes, which returns the evidence; another one ends it."""

    def __init__(self, cause: Callable[[], str | None], end: Callable[[], object] = lambda: None) -> None:
        self._cause, self._end = cause, end

    def fired(self) -> str | None:
        return self._cause()

    def lift(self) -> None:
        self._end()


class Order(Caused):
    """Change of a running job by an operator; `size` is the batch's from then on, None where it stays."""

    def __init__(
        self,
        order: Callable[[], str | None],
        undo: Callable[[], object] = lambda: None,
        size: int | None = None,
    ) -> None:
        super().__init__(order, undo)
        self.size = size


def clock_jump(fault: Fault, process: Process) -> Injection:
    """Make the clock of a process under `witness` and libfaketime jump, and jump back at the end."""
    offset = partial(clocks.set_offset, process.log.with_suffix(".offset"))

    def fired() -> str | None:
        seen = witness.read(process.log.with_suffix(".clock"))
        if seen is None or not process.is_running or seen[0] != process.pid:
            return None
        jump = seen[1] - time.time()
        has_jumped = abs(jump - fault.amount) <= _CLOCK_TOLERANCE
        return f"its clock is {jump:+.0f} s from ours" if has_jumped else None

    offset(fault.amount)
    return Caused(fired, partial(offset, 0.0))
