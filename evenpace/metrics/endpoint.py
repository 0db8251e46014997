"""The HTTP endpoint at which metrics are scraped, in threads of its own.

It must not hold up the thread that serves or trains. No lock is taken, and Python's threads switch more
often, so that an event loop waits for 0.5 ms at a time instead of 5.
"""

import contextlib
import errno
import logging
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from idl.errors import AddressInUseError, InvalidRequestError
from rpc.address import Address
from rpc.credentials import Credentials

log = logging.getLogger(__name__)

_PEER_SECONDS = 10.0  # for a peer to send its request, and to take the answer
_TURN_SECONDS = 0.0005  # of a thread, until another may run


@contextlib.contextmanager
def exposed(address: Address, collector: Collector, credentials: Credentials | None) -> Iterator[Address]:
    """Expose a part's metrics, and those of its process, while the block runs.

    Args:
        address: The address to listen on; port 0 takes a free one.
        credentials: With a certificate, TLS is spoken, and every peer must have a certificate of the same
            authorities.

    Yields:
        The address that is listened on.

    Raises:
        AddressInUseError: Something listens there already.
        InvalidRequestError: The address or a file cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    secure: Callable[[socket.socket], socket.socket] | None = None
    if credentials is not None and credentials.tls:
        contexts = credentials.contexts(server=True)

        def secure(connection: socket.socket) -> socket.socket:
            # The handshake is left to the connection's own thread: a silent peer keeps no other out.
            return contexts.current().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    server = _bound(address, registry, secure)
    bound = Address(str(server.server_address[0]), server.server_port)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _TURN_SECONDS))
    log.info("metrics at http%s://%s/metrics", "s" * (secure is not None), bound)
    try:
        yield bound
    finally:
        sys.setswitchinterval(before)
        server.shutdown()
        server.server_close()
        thread.join()


def _bound(
    address: Address, registry: CollectorRegistry, secure: Callable[[socket.socket], socket.socket] | None
) -> "_Server":
    """Return a server that listens."""
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        server = _Server(found[0][0], found[0][4], secure)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"metrics at {address}: the port is in use; stop what listens there or choose another"
            ) from error
        raise InvalidRequestError(f"metrics at {address}: {error}") from error
    server.set_app(make_wsgi_app(registry))
    return server


class _Handler(WSGIRequestHandler):
    """A connection that logs no requests, and waits for its peer for a limited time."""

    timeout = _PEER_SECONDS

    def handle(self) -> None:
        """Answer, unless the peer has gone, is too slow, or fails TLS."""
        with contextlib.suppress(OSError, ssl.SSLError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Log nothing."""


class _Server(ThreadingWSGIServer):
    """An HTTP server with a thread for each connection.

    Args:
        secure: Function that wraps a connection in TLS; None: no TLS.
    """

    def __init__(
        self, family: int, address: Any, secure: Callable[[socket.socket], socket.socket] | None
    ) -> None:
        self.address_family = family
        self._secure = secure
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind, without asking a name server for this machine's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> Any:
        """Return the next connection, wrapped in TLS if it is used."""
        connection, peer = super().get_request()
        return (self._secure(connection) if self._secure else connection), peer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the failure of a scrape."""
        log.warning("a scrape by %s failed", client_address, exc_info=True)
