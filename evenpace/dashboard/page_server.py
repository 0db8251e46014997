"""The server of a page, which runs until a signal ends it."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from evenpace.dashboard.config import PageConfig
from evenpace.dashboard.event_stream import Viewers
from evenpace.dashboard.listening import address_of
from evenpace.dashboard.polling import Polling
from evenpace.dashboard.request_guard import RequestGuard, own_names
from rpc.reloaded_files import Reloaded

log = logging.getLogger(__name__)

STATIC = Path(__file__).with_name("static")
"""The folder of what browsers load."""

_OTHERS = 100  # connections besides those of event streams
_GRACE_SECONDS = 2


class Page(NamedTuple):
    """What a server needs of a page."""

    app: ASGIApp  # answers requests
    polling: Polling  # of the service that the page shows
    viewers: Viewers  # are told when the polled state has changed


def serve(config: PageConfig, page: Page, listener: socket.socket, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        config: The page's configuration.
        page: The page.
        listener: The socket of `listening.listen`, which is closed at the end.
        announce: Function that is called with the page's address once it answers.

    Raises:
        InvalidRequestError: A file of the credentials cannot be used.
    """
    app = RequestGuard(page.app, own_names(config.http, config.names), config.scheme)
    server = _Server(_settings(config, app))
    if config.tls:
        _follow_certificate(config, server)

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            page.viewers.end()
            server.should_exit = True

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)

        def news() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(page.viewers.notify)

        page.polling.start(news)
        announce(f"{config.scheme}://{address_of(listener)}/")
        await server.serve([listener])
        page.polling.stop()

    uvloop.run(run())


class _Server(uvicorn.Server):
    """A server that leaves signals to us, as they are the regular end of this process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _TimeLimitedConnection(H11Protocol):
    """A connection with a time limit for each request, so that silent peers do not hold places.

    uvicorn has one only after an answer. The limit, its `timeout_keep_alive` (seconds), runs from the
    connection's start, and from the end of each answer, until the next request is whole. While a whole
    request is being answered, as long as an event stream takes, there is no limit.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the limit of the first request, after the TLS handshake."""
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the limit."""
        self._cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start the limit of the next request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._expect_request()

    def _expect_request(self) -> None:
        self._cancel()
        self._deadline = self.loop.call_later(self.timeout_keep_alive, self._close_unless_answering)

    def _close_unless_answering(self) -> None:
        answering = self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        if not answering:
            self.transport.close()

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()


def _settings(config: PageConfig, app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_TimeLimitedConnection,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,  # log nothing that viewers send
        server_header=False,
        proxy_headers=False,  # the peer is the viewer
        limit_concurrency=config.viewers + _OTHERS,
        timeout_keep_alive=config.request_timeout,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ssl_certfile=config.credentials.certificate if config.tls else None,
        ssl_keyfile=config.credentials.key if config.tls else None,
        ssl_cert_reqs=ssl.CERT_NONE,  # browsers have no certificate; changes need a token
    )


def _follow_certificate(config: PageConfig, server: _Server) -> None:
    """Have new connections use the certificate that the files have at that time."""
    files = config.credentials
    certificate, key = files.certificate, files.key
    assert certificate is not None
    assert key is not None
    files.contexts(server=True)  # raises an error if the files cannot be used
    server.config.load()
    context = server.config.ssl
    assert context is not None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    reloaded = Reloaded((certificate, key), lambda: context.load_cert_chain(certificate, key))

    def look(*_: object) -> None:
        with contextlib.suppress(OSError):  # the files do not match yet
            reloaded.current()

    context.sni_callback = look
