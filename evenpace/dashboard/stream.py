"""Server-sent events: tells viewers when there is news, and what it is where that is little.

A viewer is never owed anything: each time it has taken what was sent, it gets the news of that moment. So one
that reads slowly skips some, and one that does not read at all is dropped.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

log = logging.getLogger(__name__)

_SLOW_SECONDS = 15.0  # for a viewer to take what was sent
_BEAT_SECONDS = 2.0  # between events, at most: a viewer that hears nothing for longer tries again
_RETRY = b"retry: 1000\n\n"  # milliseconds, for the browser to connect again

Events = Callable[[], Awaitable[dict[str, Any]]]


class Viewers:
    """Those who follow now.

    Args:
        most: How many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: set[asyncio.Event] = set()
        self.over = False

    @property
    def full(self) -> bool:
        """Whether no more may follow."""
        return len(self._waiting) >= self._most

    def enter(self) -> asyncio.Event:
        """Count a viewer in: the event is set when there is news."""
        news = asyncio.Event()
        self._waiting.add(news)
        return news

    def leave(self, news: asyncio.Event) -> None:
        """It has gone."""
        self._waiting.discard(news)

    def tell(self) -> None:
        """There is news."""
        for news in self._waiting:
            news.set()

    def end(self) -> None:
        """The page ends."""
        self.over = True
        self.tell()


class EventStream:
    """The answer to one viewer, as an ASGI application.

    Args:
        viewers: Whom it is one of.
        events: What there is to tell now, by the event's name; of each only what has changed is sent.
    """

    def __init__(self, viewers: Viewers, events: Events) -> None:
        self._viewers = viewers
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell until the viewer goes, or does not read."""
        news = self._viewers.enter()
        gone = asyncio.create_task(_gone(receive))
        gone.add_done_callback(lambda _: news.set())
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._tell(news, gone, send)
            if not gone.done():
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            log.info("dropped a viewer who did not read for %g s", _SLOW_SECONDS)
        finally:
            gone.cancel()
            self._viewers.leave(news)

    async def _tell(self, news: asyncio.Event, gone: "asyncio.Task[None]", send: Send) -> None:
        told: dict[str, str] = {}
        text = _RETRY
        while not gone.done() and not self._viewers.over:
            for name, value in (await self._events()).items():
                data = json.dumps(value, separators=(",", ":"), allow_nan=False)
                if told.get(name) != data:
                    told[name] = data
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
