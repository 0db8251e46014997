"""A Thrift server on one event loop, for thousands of connections.

A call's meaning is the service's business: it answers at once, or keeps the call and answers later, as
barriers do. One connection is in `rpc.peer`.
"""

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from idl.errors import AddressInUseError, ConnectionLostError, InvalidRequestError
from idl.settings import Setting
from rpc.address import Address
from rpc.counters import ServerTally
from rpc.credentials import Credentials
from rpc.guard import AUTHENTICATE
from rpc.limited_log import LimitedLog
from rpc.limits import Admission, ServerLimits
from rpc.peer import Peer
from rpc.periodic import Periodic
from rpc.service import Service
from rpc.tls import READ_BYTES, TlsLayer
from rpc.tokens import TokenKeys

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.25
_STALL_SECONDS = 1.0  # by which a sweep is late if this process was stopped, rather than busy
_LINGERING = 200  # refused connections that are kept open for a moment, so that the reason is delivered
_WARNINGS = 20  # lines of log about peers per second


@dataclass(frozen=True)
class Security:
    """The authentication that a server requires of its peers.

    Attributes:
        token_key: Instead of `token_keys`: a key that this server and its callers got from a service that
            all of them trust.
    """

    # For TLS; every peer must have a certificate of its authorities. None: no TLS.
    credentials: Credentials | None = None
    token_keys: Annotated[
        Path | None,
        Setting(
            "Require tokens that are signed with a key of this file; see `evenpace token`.",
            name="token-key",
            folder=False,
        ),
    ] = None
    insecure: Annotated[
        bool,
        Setting("Listen to other machines without TLS or without tokens: for trusted networks."),
    ] = False
    token_key: bytes | None = field(default=None, repr=False)

    @property
    def keys(self) -> Path | bytes | None:
        """Return the file or the key that tokens are checked with; None where none are required."""
        return self.token_keys or self.token_key

    def check_address(self, address: Address) -> None:
        """Check that a server may listen on an address.

        Raises:
            InvalidRequestError: Other machines could reach it without TLS or tokens.
        """
        tls = self.credentials is not None and self.credentials.tls
        if self.insecure or (tls and self.keys is not None) or address.is_loopback:
            return
        missing = " and ".join(
            name for name, given in (("TLS", tls), ("tokens", self.keys is not None)) if not given
        )
        raise InvalidRequestError(
            f"others could reach {address} without {missing}: give --tls and --token-key "
            f"(see docs/security.md), listen on 127.0.0.1, or say --insecure if the network is trusted"
        )


@dataclass
class Server:
    """A server of one service on one address, on the running event loop.

    Attributes:
        tally: The server's counters.

    Raises:
        InvalidRequestError: A file of the security settings cannot be used.
    """

    service: Service
    limits: ServerLimits = field(default_factory=ServerLimits)  # limits on its peers
    security: Security = field(default_factory=Security)  # the authentication that is required of them

    def __post_init__(self) -> None:
        self.tally = ServerTally(self.service.definition.thrift_services)  # type: ignore[attr-defined]
        self._peers: dict[Peer, None] = {}  # in the order in which they came
        self._admission: Admission[Peer] = Admission(self.limits)
        self._unfinished = 0  # bytes; see `ServerLimits`
        self._lingering = 0
        self._warnings = LimitedLog(log, _WARNINGS, "%d more connections were refused or cut off")
        credentials, keys = self.security.credentials, self.security.keys
        self.contexts = credentials.contexts(server=True) if credentials and credentials.tls else None
        self._buffer = memoryview(bytearray(READ_BYTES if self.contexts else 0))
        self.token_keys = TokenKeys(keys) if keys is not None else None
        if self.token_keys and AUTHENTICATE not in self.service.definition.thrift_services:  # type: ignore[attr-defined]
            raise InvalidRequestError(f"{self.service.definition.__name__} cannot be asked for tokens")
        self.stopping = False

    async def start(self, address: Address) -> Address:
        """Start to listen.

        Args:
            address: The address to listen on; port 0 chooses a free one.

        Returns:
            The address that the server listens on.

        Raises:
            InvalidRequestError: Other machines could reach it without TLS or tokens.
            AddressInUseError: Another process listens there already.
            ConnectionLostError: The address cannot be listened on.
        """
        self.security.check_address(address)
        loop = asyncio.get_running_loop()
        create: Callable[..., Any] = loop.create_server
        try:
            # No SO_REUSEPORT: a second server on the port must fail, not take half of the workers.
            self._listener = await create(
                self._make_protocol, address.host, address.port, backlog=4096, reuse_port=False
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUseError(
                    f"{address} is in use: another service listens there; stop it or choose another port"
                ) from error
            raise ConnectionLostError(f"cannot listen on {address}: {error}") from error
        self._sweeper = loop.create_task(self._sweep())
        return Address(*self._listener.sockets[0].getsockname()[:2])

    async def stop(self, grace: float = 5.0) -> None:
        """Stop listening, have all calls answered, and close the connections.

        Args:
            grace: Seconds for peers to take their answers; then they are cut off.
        """
        self.stopping = True
        self._listener.close()
        self._sweeper.cancel()
        self.service.stop()
        deadline = time.monotonic() + grace
        while any(peer.is_sending() for peer in self._peers) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for peer in list(self._peers):
            if peer.is_sending():
                peer.transport.abort()
            else:
                peer.transport.close()
        while self._peers and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    @property
    def connections(self) -> int:
        """Return the number of connections."""
        return len(self._peers)

    def admit(self, peer: Peer, host: str) -> str:
        """Admit a new connection, and cut off another if too many are unauthenticated.

        Returns:
            The reason to refuse it; empty if it is admitted.
        """
        if self.stopping:
            return "the service is shutting down"
        refusal = self._admission.enter(peer, host)
        if not refusal:
            self._peers[peer] = None
            self.tally.accepted += 1
            if self.contexts is not None or self.token_keys is not None:
                excess = self._admission.excess_peer()
                if excess is not None:
                    excess.transport.abort()
                    self.tally.cut_off += 1
                    self._admission.leave(excess)
                    self.warn(
                        f"cut off {excess.name}: too many connections without authentication",
                        excess.log_fields,
                    )
        return refusal

    def trust(self, peer: Peer) -> None:
        """Note that a connection has been authenticated."""
        self._admission.trust(peer)

    def forget(self, peer: Peer) -> None:
        """Forget a connection that has ended."""
        self._admission.leave(peer)
        self._peers.pop(peer, None)

    def reserve(self, count: int) -> bool:
        """Reserve memory for incomplete messages, or release it where `count` is below 0.

        Returns:
            Whether the memory was available.
        """
        if count > 0 and self._unfinished + count > self.limits.unfinished_bytes:
            return False
        self._unfinished += count
        return True

    def linger(self, peer: Peer, seconds: float) -> None:
        """Close a refused connection after `seconds`, for its reason to arrive; at once if many wait."""
        if self._lingering >= _LINGERING:
            peer.transport.abort()
            return
        self._lingering += 1
        asyncio.get_running_loop().call_later(seconds, self._end_lingering, peer)

    def warn(self, text: str, fields: Mapping[str, Any]) -> None:
        """Log a peer's misuse, within a limit of lines per second."""
        self._warnings(logging.WARNING, "%s", text, extra=fields)

    def _end_lingering(self, peer: Peer) -> None:
        self._lingering -= 1
        peer.transport.abort()

    def _make_protocol(self) -> asyncio.BufferedProtocol:
        peer = Peer(self)
        if self.contexts is None:
            return peer
        context = self.contexts.current()
        return TlsLayer(peer, context, self._buffer, secured=peer.secured, failed=peer.tls_failed)

    async def _sweep(self) -> None:
        before, stalled = time.monotonic(), False
        service = Periodic("looking at the service's deadlines")
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.monotonic()
            late, before = now - before - _SWEEP_SECONDS, now
            self.tally.loop_lag = max(0.0, late)
            stalled = late > _STALL_SECONDS and not stalled
            if stalled:
                continue  # this process was stopped: first read what peers have sent meanwhile
            self._warnings.tick()
            for peer in list(self._peers):
                try:
                    peer.check_deadlines(now)
                except Exception:
                    log.exception("%s is cut off: its deadlines cannot be looked at", peer.name)
                    peer.transport.abort()
            with service:
                self.service.tick(now)
