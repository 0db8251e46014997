"""A Thrift server on one event loop, for thousands of connections.

What a call means is its service's business: it answers at once, or keeps the call and answers later, which is
how barriers work. What one connection does is in `rpc.peer`.
"""

import asyncio
import errno
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rpc.address import Address
from rpc.errors import AddressInUseError, ConnectionLostError
from rpc.peer import Peer, ServerLimits
from rpc.service import Service

_SWEEP_SECONDS = 0.25


@dataclass
class Server:
    """Serves one service on one address, on the running event loop."""

    service: Service
    limits: ServerLimits = field(default_factory=ServerLimits)

    def __post_init__(self) -> None:
        self._peers: set[Peer] = set()
        self.stopping = False

    async def start(self, address: Address) -> Address:
        """Listen.

        Args:
            address: Where to; port 0 takes a free one.

        Returns:
            The address that the server listens on.

        Raises:
            AddressInUseError: Something listens there already.
            ConnectionLostError: The address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        create: Callable[..., Any] = loop.create_server
        try:
            # No SO_REUSEPORT: a second server on the port must fail, not take half of the workers.
            self._listener = await create(
                lambda: Peer(self), address.host, address.port, backlog=4096, reuse_port=False
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
        """Stop listening, have everything in flight answered, and close.

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

    def admit(self, peer: Peer) -> bool:
        """Count a new connection in, unless there are too many."""
        if self.stopping or len(self._peers) >= self.limits.connections:
            return False
        self._peers.add(peer)
        return True

    def forget(self, peer: Peer) -> None:
        """A connection has gone."""
        self._peers.discard(peer)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.monotonic()
            for peer in list(self._peers):
                peer.check_deadlines(now)
            self.service.tick(now)
