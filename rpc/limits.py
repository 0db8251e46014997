"""What peers may do to a server, and the counts that hold them to it. No sockets, no clock."""

from collections import Counter
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from idl.errors import InvalidRequestError
from rpc import codec

T = TypeVar("T")


@dataclass(frozen=True)
class ServerLimits:
    """What a peer may do to a server.

    Attributes:
        frame_bytes: Longest message, its bulk field left out.
        bulk_bytes: Longest bulk field; 0 where there are none.
        connections: How many peers at once.
        calls_in_flight: How many unanswered calls on one connection.
        handshake_timeout: Seconds from a connection's start to its first whole message, TLS and
            authentication included.
        request_timeout: Seconds from a message's first byte to its last (in a bulk field: without any
            progress), and for a peer to take any of its answer.
        idle_timeout: Seconds without any message, while no call is being answered.
        address_connections: How many peers from one address.
        strangers: How many peers that have not proved yet who they are, by TLS or a token. One more, and
            the oldest goes of the address that has the most of them.
        stranger_frame_bytes: Longest message of one that has not.
        stranger_calls: How many calls of one that has not.
        calls_per_second: Of one connection, in the long run. A second's worth may come at once; then calls
            are refused as unavailable, and after another second's worth of these the connection is closed.
        unfinished_bytes: Of messages that have not arrived as a whole, bulk fields left out, over all
            connections.
        unsent_bytes: Of answers that one peer has not taken, before nothing more is read from it.

    Raises:
        InvalidRequestError: One is not above 0, but for the bulk field's.
    """

    frame_bytes: int = 2**20
    bulk_bytes: int = codec.MAX_FRAME - 2**20
    connections: int = 10_000
    calls_in_flight: int = 64
    handshake_timeout: float = 10.0
    request_timeout: float = 20.0
    idle_timeout: float = 3600.0
    address_connections: int = 6_000
    strangers: int = 1_000
    stranger_frame_bytes: int = 4_000
    stranger_calls: int = 8
    calls_per_second: float = 10_000.0
    unfinished_bytes: int = 2**28
    unsent_bytes: int = 2**24

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0 and (field.name, value) != ("bulk_bytes", 0):
                raise InvalidRequestError(f"{field.name} {value!r}: must be above 0")


class Rate:
    """A token bucket, which may run into debt.

    Args:
        per_second: How much flows in, up to a second's worth.
        now: Seconds.
    """

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._left = self._size = max(1.0, per_second)
        self._at = now

    def take(self, now: float) -> float:
        """Take one; what is left then, which below 0 is a debt."""
        left = min(self._size, self._left + (now - self._at) * self._per_second) - 1.0
        self._left = max(left, -2 * self._size)  # a debt is forgiven within seconds
        self._at = now
        return self._left

    @property
    def size(self) -> float:
        """The most that can be left."""
        return self._size


class Admission(Generic[T]):
    """Who is connected, from where, and who is still a stranger.

    Args:
        limits: How many there may be.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._hosts: dict[T, str] = {}
        self._counts: Counter[str] = Counter()
        self._strangers: dict[str, dict[T, None]] = {}  # by host, the oldest first
        self._unknown = 0

    def enter(self, peer: T, host: str) -> str:
        """Count a newcomer in, as a stranger.

        Returns:
            Why it may not come in; nothing if it may.
        """
        limits = self._limits
        if len(self._hosts) >= limits.connections:
            return f"{limits.connections} connections are open already; no more are allowed"
        if self._counts[host] >= limits.address_connections:
            return (
                f"{limits.address_connections} connections are open from {host} already; no more are allowed"
            )
        self._hosts[peer] = host
        self._counts[host] += 1
        self._strangers.setdefault(host, {})[peer] = None
        self._unknown += 1
        return ""

    def stranger_too_many(self) -> T | None:
        """Who has to go, if there are too many strangers: the oldest from where most of them are."""
        if self._unknown <= self._limits.strangers:
            return None
        crowd = max(self._strangers.values(), key=len)
        return next(iter(crowd))

    def trust(self, peer: T) -> None:
        """A stranger has proved who it is."""
        host = self._hosts.get(peer)
        if host is not None and peer in self._strangers.get(host, ()):
            del self._strangers[host][peer]
            if not self._strangers[host]:
                del self._strangers[host]
            self._unknown -= 1

    def leave(self, peer: T) -> None:
        """A connection has gone; it may never have been counted in."""
        self.trust(peer)
        host = self._hosts.pop(peer, None)
        if host is not None:
            self._counts[host] -= 1
            if not self._counts[host]:
                del self._counts[host]
