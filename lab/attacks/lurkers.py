"""Attackers that send little: silent ones, slow ones, ones that do not read or break off, and crowds."""

import contextlib
import math
import random
import select
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.attacks.attackers import Tally, Target
from rpc.dial import reset_when_closed

_SECONDS = 25.0  # seconds that each stays, if it may: longer than a service's deadline for a message
_EACH = 4  # lurkers of each kind at each service
_CROWD = 100  # connections that are opened and closed at once
_CROWD_SECONDS = 2.0  # seconds between crowds
_SLOW_SECONDS = 0.2  # seconds from one byte of a slow writer to the next


@dataclass
class _Lurker:
    kind: str
    connection: socket.socket
    since: float
    rest: bytes = b""  # bytes yet to be sent
    piece: int = 1  # bytes sent at once; with 1, it waits between two of them
    spoke_at: float = -math.inf


class Lurkers:
    """Some lurkers of each kind, which stay connected for as long as the services let them."""

    def __init__(self, targets: Sequence[Target], tally: Tally, seed: int) -> None:
        self._targets = targets
        self._tally = tally
        self._random = random.Random(f"{seed} lurkers")
        self._lurkers: list[tuple[Target, _Lurker]] = []
        self._kinds: dict[str, Callable[[Target], tuple[bytes, int]]] = {
            "silent": lambda target: (b"", 1),
            "slow writer": lambda target: (target.hello + self._call(target), 1),
            "half a message": lambda target: (target.hello + self._call(target)[:-5], 2**16),
            "deaf": lambda target: (target.hello + target.questions, 2**16),
        }
        self._crowd_at = 0.0

    def go_on(self, now: float) -> None:
        """Let each lurker act; to be called a few times a second. `now` is monotonic, in seconds."""
        self._lurkers = [(target, lurker) for target, lurker in self._lurkers if self._stays(lurker, now)]
        there = Counter((target.name, lurker.kind) for target, lurker in self._lurkers)
        for target in self._targets:
            for kind in self._kinds:
                for _ in range(_EACH - there[target.name, kind]):
                    self._begin(target, kind, now)
            if now >= self._crowd_at:
                self._crowd(target)
        if now >= self._crowd_at:
            self._crowd_at = now + _CROWD_SECONDS

    def close(self) -> None:
        """Close all connections."""
        for _, lurker in self._lurkers:
            _vanish(lurker.connection)
        self._lurkers.clear()

    def _begin(self, target: Target, kind: str, now: float) -> None:
        rest, piece = self._kinds[kind](target)
        connection = self._connect(target)
        if connection is None:
            return
        # Not all at the same time, lest all deadlines pass at once.
        since = now - self._random.random() * _SECONDS / 2
        self._lurkers.append((target, _Lurker(kind, connection, since, rest, piece)))
        self._count(kind)

    def _stays(self, lurker: _Lurker, now: float) -> bool:
        """Let a lurker act; return whether it is still connected afterwards."""
        try:
            while lurker.rest and (lurker.piece > 1 or now - lurker.spoke_at >= _SLOW_SECONDS):
                sent = lurker.connection.send(lurker.rest[: lurker.piece])
                lurker.rest = lurker.rest[sent:]
                lurker.spoke_at = now
            if lurker.kind == "deaf":
                if _is_over(lurker.connection):
                    raise ConnectionResetError
            elif not lurker.connection.recv(4096):
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            self._tally.outcomes[lurker.kind, "the connection ended"] += 1
            _vanish(lurker.connection)
            return False
        if now - lurker.since > _SECONDS:
            self._tally.outcomes[lurker.kind, "was left alone"] += 1
            _vanish(lurker.connection)
            return False
        return True

    def _crowd(self, target: Target) -> None:
        connections = [self._connect(target) for _ in range(_CROWD)]
        for connection in connections:
            if connection is not None:
                _vanish(connection)
                self._count("crowd")

    def _connect(self, target: Target) -> socket.socket | None:
        connection = socket.socket()
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14)
            connection.settimeout(5)
            connection.connect(target.address)
            connection.setblocking(False)
        except OSError:
            self._tally.outcomes["any", "could not connect"] += 1
            connection.close()
            return None
        self._tally.connections += 1
        return connection

    def _count(self, kind: str) -> None:
        self._tally.tried[kind] += 1

    def _call(self, target: Target) -> bytes:
        """Return the frame of a call that does not end a connection."""
        inputs = target.inputs.batch(1)
        return b"".join(one.data for one in inputs if not one.ends)


def _is_over(connection: socket.socket) -> bool:
    """Return whether the other side has closed the connection, without reading what it sent before."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _vanish(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        reset_when_closed(connection)
    connection.close()
