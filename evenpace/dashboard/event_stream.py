"""Server-sent events: viewers get the present state of a job when it changes.

No events are queued: each time a viewer has taken what was sent, it gets the state of that moment. So a slow
reader skips some states, and one that does not read at all is dropped.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from evenpace.dashboard.request_guard import refusal

log = logging.getLogger(__name__)

_SLOW_SECONDS = 15.0  # for a viewer to take what was sent
_BEAT_SECONDS = 2.0  # between events, at most: a viewer that receives nothing for longer reconnects
_RETRY = b"retry: 1000\n\n"  # milliseconds, for the browser to connect again

Events = Callable[[], Awaitable[dict[str, Any]]]


class Viewers:
    """The viewers who follow at present.

    Args:
        most: The most viewers at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: set[asyncio.Event] = set()
        self.over = False

    @property
    def is_full(self) -> bool:
        """Return whether no more viewers may follow."""
        return len(self._waiting) >= self._most

    def enter(self) -> asyncio.Event:
        """Add a viewer; the returned event is set when the state has changed."""
        news = asyncio.Event()
        self._waiting.add(news)
        return news

    def leave(self, news: asyncio.Event) -> None:
        """Remove a viewer."""
        self._waiting.discard(news)

    def notify(self) -> None:
        """Wake all viewers: the state has changed."""
        for news in self._waiting:
            news.set()

    def end(self) -> None:
        """End all streams with the page."""
        self.over = True
        self.notify()


def follow(viewers: Viewers, events: Events) -> "EventStream | JSONResponse":
    """Return the answer to one who wants to follow: a refusal where too many do."""
    if viewers.is_full:
        answer = refusal(503, "too many viewers follow this page already; try again later")
        answer.headers["retry-after"] = "30"
        return answer
    return EventStream(viewers, events)


class EventStream:
    """The answer to one viewer, as an ASGI application.

    Args:
        events: Function that returns the present values by the event's name; changed ones are sent.
    """

    def __init__(self, viewers: Viewers, events: Events) -> None:
        self._viewers = viewers
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the viewer goes, or does not read."""
        news = self._viewers.enter()
        gone = asyncio.create_task(_gone(receive))
        gone.add_done_callback(lambda _: news.set())
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send_events(news, gone, send)
            if not gone.done():
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            log.info("dropped a viewer who did not read for %g s", _SLOW_SECONDS)
        finally:
            gone.cancel()
            self._viewers.leave(news)

    async def _send_events(self, news: asyncio.Event, gone: "asyncio.Task[None]", send: Send) -> None:
        sent: dict[str, str] = {}
        text = _RETRY
        while not gone.done() and not self._viewers.over:
            for name, value in (await self._events()).items():
                data = json.dumps(value, separators=(",", ":"), allow_nan=False)
                if sent.get(name) != data:
                    sent[name] = data
                    text += f"event: {name}\ndata: {data}\n\n".encode()
            body = {
                "type": "http.response.body",
                "body": text or b"event: beat\ndata: {}\n\n",
                "more_body": True,
            }
            await asyncio.wait_for(send(body), _SLOW_SECONDS)
            text = b""
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), _BEAT_SECONDS)
            news.clear()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
