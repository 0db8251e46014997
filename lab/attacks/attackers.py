"""Attackers on real connections: each sends batches of inputs, and checks how the service reacts.

A batch ends with a call whose answer shows that all before it were taken, or with the end of the connection.
One thread serves all attackers of a process, by epoll.
"""

import contextlib
import random
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from thriftpy2.thrift import TApplicationException, TMessageType

from idl.errors import ProtocolError
from lab.attacks.inputs import STOLEN, Input, Inputs
from rpc import codec
from rpc.address import Address
from rpc.dial import reset_when_closed

_BATCH = 12  # inputs
_BATCHES = 30  # batches of one connection
_STRANGERS_BATCH = 4  # inputs of a batch on a connection that is not authenticated
_REMEMBERED = 64  # last inputs of a connection that are kept, for when they do harm
_READ = 65536  # bytes
_HANG_SECONDS = 30.0  # seconds without an answer that count as a hang
_SENTINEL = 0x40000000  # the lowest sequence id of sentinels; inputs have lower ones


@dataclass
class Harm:
    """One kind of harm: a reaction that no input may cause."""

    inputs: Sequence[Input] = ()  # the connection's last inputs when the harm was first seen, oldest first
    times: int = 0  # number of times that it was seen


@dataclass(frozen=True)
class Target:
    """A service under attack by one attacker, which has a job of its own there."""

    name: str  # name of the service, for people
    address: Address  # address of the service
    inputs: Inputs  # inputs to send
    sentinel: tuple[str, Any]  # method and request of a call that is answered at once, be it with an error
    questions: bytes  # calls whose answers are long
    hello: bytes = b""  # frame that authenticates a connection; empty where no token is asked for
    impostures: Sequence[bytes] = ()  # frames that must not authenticate a connection


@dataclass
class Tally:
    """Counts of the inputs tried and of the services' reactions."""

    tried: Counter[str] = field(default_factory=Counter)  # number of inputs by kind
    # Number of inputs by kind and reaction.
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    harms: dict[str, Harm] = field(default_factory=dict)  # harm by description
    connections: int = 0  # number of connections made
    # Longest time until a batch was answered, by service, in seconds.
    slowest: dict[str, float] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """Return the number of inputs tried."""
        return self.tried.total()

    def harm(self, what: str, inputs: Sequence[Input] = ()) -> None:
        """Record harm, described by `what`, with the inputs sent before it."""
        self.harms.setdefault(what, Harm(tuple(inputs))).times += 1


class Attacker:
    """One attacker, which connects again whenever its connection ends."""

    def __init__(self, target: Target, tally: Tally, poll: select.epoll, chance: random.Random) -> None:
        self._target = target
        self._tally = tally
        self._poll = poll
        self._random = chance
        self._socket: socket.socket | None = None
        self._last: deque[Input] = deque(maxlen=_REMEMBERED)
        self._sequence = _SENTINEL

    @property
    def descriptor(self) -> int:
        """Return the file descriptor of its connection."""
        assert self._socket is not None
        return self._socket.fileno()

    def connect(self) -> None:
        """Make a new connection and send the first batch; again, where the service resets it meanwhile."""
        while True:
            self._open()
            try:
                return self._send_batch()
            except OSError:
                self._ended()

    def _open(self) -> None:
        self._socket = socket.socket()
        self._socket.settimeout(_HANG_SECONDS)
        self._socket.connect(self._target.address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._poll.register(self._socket, select.EPOLLIN)
        self._tally.connections += 1
        self._received, self._unsent = b"", b""
        self._kinds: dict[int, str] = {}
        self._batches = 0
        self._is_stranger = bool(self._target.hello) and self._random.random() < 0.2
        if self._is_stranger:
            self._unsent = self._random.choice((b"", *self._target.impostures))
        else:
            self._unsent = self._target.hello

    def close(self) -> None:
        """Close the connection, by a reset."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                reset_when_closed(self._socket)
            self._socket.close()
            self._socket = None

    def ready(self, event: int) -> None:
        """Handle an epoll event: the connection has something to read, or takes more."""
        assert self._socket is not None
        try:
            if event & select.EPOLLOUT:
                self._write()
            if event & ~select.EPOLLOUT:
                data = self._socket.recv(_READ)
                if not data:
                    raise ConnectionResetError
                self._read(self._received + data)
        except BlockingIOError:
            return
        except OSError:
            self._ended()
            self.connect()

    def check(self, now: float) -> None:
        """Record harm if the service has not answered for too long; `now` is monotonic, in seconds."""
        if now - self._since > _HANG_SECONDS:
            self._harm(f"{self._target.name}: no answer for {_HANG_SECONDS:g} s")
            self.close()
            self.connect()

    def _send_batch(self) -> None:
        size = _STRANGERS_BATCH if self._is_stranger else _BATCH
        self._batch = self._target.inputs.batch(size)
        self._kinds |= {one.sequence: one.kind for one in self._batch}  # an answer may come batches later
        self._answered = 0
        self._since = time.monotonic()
        self._batches += 1
        self._last.extend(self._batch)
        data = b"".join(one.data for one in self._batch)
        self._ending = self._batch[-1].ends
        if not self._ending:
            self._sequence += 1
            method, request = self._target.sentinel
            arguments = getattr(self._target.inputs.definition, f"{method}_args")(request)
            header = codec.Header(method, TMessageType.CALL, self._sequence)
            data += codec.frame(codec.encode(header, arguments))
        self._unsent += data
        self._write()

    def _write(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        if self._unsent:
            self._poll.modify(self._socket, select.EPOLLIN | select.EPOLLOUT)
            return
        self._poll.modify(self._socket, select.EPOLLIN)
        if self._ending:
            self._socket.shutdown(socket.SHUT_WR)  # what was sent is still taken, then the service closes

    def _read(self, data: bytes) -> None:
        position = 0
        while len(data) - position >= 4:
            end = position + 4 + codec.LENGTH.unpack_from(data, position)[0]
            if end > len(data):
                break
            if self._take(data[position + 4 : end]):
                self._received = b""
                if self._batches >= (1 if self._is_stranger else _BATCHES):
                    self.close()
                    self.connect()
                else:
                    self._send_batch()
                return
            position = end
        self._received = data[position:]

    def _take(self, message: bytes) -> bool:
        """Count an answer; return whether it completes the batch."""
        header, position = codec.read_header(message)
        outcome = self._outcome(header, message, position)
        if header.sequence_id == self._sequence and not self._ending:
            slowest, seconds = self._tally.slowest, time.monotonic() - self._since
            slowest[self._target.name] = max(seconds, slowest.get(self._target.name, 0.0))
            self._count(len(self._batch))
            return True
        if header.method == "authenticate":
            return False
        self._answered += header.type == TMessageType.REPLY
        kind = self._kinds.get(header.sequence_id, self._batch[-1].kind)
        self._tally.outcomes[kind, outcome] += 1
        if (kind, outcome) == (STOLEN, "accepted"):
            self._harm(f"{self._target.name}: {header.method} with a stolen identity was accepted")
        return False

    def _outcome(self, header: codec.Header, message: bytes, position: int) -> str:
        if header.type == TMessageType.EXCEPTION:
            error = codec.decode(message, TApplicationException)
            if error.type == TApplicationException.INTERNAL_ERROR or "internal error" in error.message:
                self._harm(f"{self._target.name}: {header.method}: {error.message}")
                return "internal error"
            if error.type == TApplicationException.UNKNOWN_METHOD:
                return "no such method"
            return "refused, and the connection closed"
        number = int.from_bytes(message[position + 1 : position + 3], "big")
        result = getattr(self._target.inputs.definition, f"{header.method}_result", None)
        if result is None or number not in result.thrift_spec:
            raise ProtocolError(f"{self._target.name} answered {header}")
        return result.thrift_spec[number][2].__name__ if number else "accepted"

    def _ended(self) -> None:
        """Count inputs as the connection has ended: those answered, or all if one may end the connection."""
        assert self._socket is not None
        if self._ending:
            self._count(len(self._batch))
        else:
            self._tally.outcomes["any", "the connection ended"] += 1
            self._count(min(len(self._batch), self._answered))
        self.close()

    def _count(self, tried: int) -> None:
        for one in self._batch[:tried]:
            self._tally.tried[one.kind] += 1

    def _harm(self, what: str) -> None:
        self._tally.harm(what, self._last)


class Attackers:
    """All attackers of this process."""

    def __init__(self, targets: Sequence[Target], seed: int) -> None:
        self.tally = Tally()
        self._poll = select.epoll()
        self._attackers: list[Attacker] = []
        for number, target in enumerate(targets):
            chance = random.Random(f"{seed} {target.name} {number}")
            attacker = Attacker(target, self.tally, self._poll, chance)
            attacker.connect()
            self._attackers.append(attacker)

    def attack(self, seconds: float) -> None:
        """Serve all attackers for some seconds."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            for descriptor, event in self._poll.poll(until - now):
                attacker = next(one for one in self._attackers if one.descriptor == descriptor)
                attacker.ready(event)
        for attacker in self._attackers:
            attacker.check(now)

    def close(self) -> None:
        """Close all connections."""
        for attacker in self._attackers:
            attacker.close()
        self._attackers.clear()
        self._poll.close()
