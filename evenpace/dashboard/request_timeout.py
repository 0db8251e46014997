"""HTTP connections with a time limit for each request, so that silent peers do not hold places."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class TimeLimitedConnection(H11Protocol):
    """A connection with a time limit for each request; uvicorn has one only after an answer.

    The limit, uvicorn's `timeout_keep_alive` (seconds), runs from the connection's start, and from the end of
    each answer, until the next request is whole. While a whole request is being answered, as long as an
    event stream takes, there is no limit.
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
