"""Limits on a server's peers, and the counters that enforce them. No sockets, no clock."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from idl.settings import Checked, Setting
from rpc import codec

T = TypeVar("T")


@dataclass(frozen=True)
class ServerLimits(Checked):
    """Limits on a server's peers.

    Attributes:
        request_timeout: Seconds from a message's first byte to its last (in a bulk field: without any
            progress), and for a peer to take any of its answer.
        strangers: A peer is one until it has proved by TLS or a token who it is. Where there are more, the
            oldest goes of the address that has the most of them.
        calls_per_second: A second's worth may come at once; then calls are refused as unavailable, and after
            another second's worth of these the connection is closed.

    Raises:
        InvalidRequestError: A limit other than `bulk_bytes` is not above 0.
    """

    frame_bytes: Annotated[int, Setting(least=1)] = 2**20  # longest message, its bulk field left out
    # Longest bulk field; 0 where there are none.
    bulk_bytes: Annotated[int, Setting(least=0)] = codec.MAX_FRAME - 2**20
    connections: Annotated[int, Setting("Most connections.", name="max-connections", least=1)] = 10_000
    calls_in_flight: Annotated[int, Setting(least=1)] = 64  # the most unanswered calls on one connection
    # Seconds from a connection's start to its first whole message, TLS and authentication included.
    handshake_timeout: Annotated[float, Setting(above=0)] = 10.0
    request_timeout: Annotated[float, Setting(above=0)] = 20.0
    # Seconds without any message, while no call is being answered.
    idle_timeout: Annotated[float, Setting(above=0)] = 3600.0
    address_connections: Annotated[
        int, Setting("Most connections from one address.", name="max-address-connections", least=1)
    ] = 6_000
    strangers: Annotated[
        int,
        Setting(
            "Most connections of peers that have not authenticated themselves.", name="max-strangers", least=1
        ),
    ] = 1_000
    stranger_frame_bytes: Annotated[int, Setting(least=1)] = 4_000  # longest message of a stranger
    stranger_calls: Annotated[int, Setting(least=1)] = 8  # the most calls of a stranger
    calls_per_second: Annotated[
        float,
        Setting("Most calls per second of one connection, on average.", name="max-calls-per-second", above=0),
    ] = 10_000.0
    # Bulk fields do not count.
    unfinished_bytes: Annotated[
        int,
        Setting(
            "Most bytes of messages that have not arrived completely, over all connections.",
            name="max-unfinished-bytes",
            least=1,
        ),
    ] = 2**28
    unsent_bytes: Annotated[
        int,
        Setting(
            "Bytes of answers that a peer has not taken, above which no more of its calls are read.",
            name="max-unsent-bytes",
            least=1,
        ),
    ] = 2**24


class Rate:
    """A token bucket whose level may become negative.

    Args:
        per_second: Tokens that are added per second, up to a second's worth.
        now: Seconds, as for `take`.
    """

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._left = self._size = max(1.0, per_second)
        self._at = now

    def take(self, now: float) -> float:
        """Take a token, and return the level after that; below 0, there were too few."""
        left = min(self._size, self._left + (now - self._at) * self._per_second) - 1.0
        self._left = max(left, -2 * self._size)  # so that it recovers within seconds
        self._at = now
        return self._left

    @property
    def size(self) -> float:
        """Return the highest level."""
        return self._size


class Admission(Generic[T]):
    """The connections of a server, by address, and which of them are not authenticated yet."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._hosts: dict[T, str] = {}
        self._counts: Counter[str] = Counter()
        self._unauthenticated: dict[str, dict[T, None]] = {}  # by host, the oldest first
        self._unauthenticated_count = 0

    def enter(self, peer: T, host: str) -> str:
        """Count a new connection, which is not authenticated yet.

        Returns:
            The reason to refuse it; empty if it is admitted.
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
        self._unauthenticated.setdefault(host, {})[peer] = None
        self._unauthenticated_count += 1
        return ""

    def excess_peer(self) -> T | None:
        """Return the connection to close if too many are unauthenticated, or None.

        It is the oldest one of the address that has the most of them.
        """
        if self._unauthenticated_count <= self._limits.strangers:
            return None
        busiest = max(self._unauthenticated.values(), key=len)
        return next(iter(busiest))

    def trust(self, peer: T) -> None:
        """Note that a connection has been authenticated."""
        host = self._hosts.get(peer)
        if host is not None and peer in self._unauthenticated.get(host, ()):
            del self._unauthenticated[host][peer]
            if not self._unauthenticated[host]:
                del self._unauthenticated[host]
            self._unauthenticated_count -= 1

    def leave(self, peer: T) -> None:
        """Remove a connection that has ended; it may never have been admitted."""
        self.trust(peer)
        host = self._hosts.pop(peer, None)
        if host is not None:
            self._counts[host] -= 1
            if not self._counts[host]:
                del self._counts[host]
