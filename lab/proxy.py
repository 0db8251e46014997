"""TCP proxy between workers and services, whose links have a bandwidth and can be made to fail.

They can be cut, stalled, throttled, half closed, or swallow all bytes. The proxy forwards bytes, and knows
nothing of their meaning. It runs on an event loop in a thread of its own.
"""

import asyncio
import contextlib
import math
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import uvloop

from rpc.address import Address
from rpc.dial import reset_when_closed

T = TypeVar("T")

_CHUNK = 65_536  # bytes
_PIECE_SECONDS = 0.01  # seconds that a link of limited bandwidth takes for the bytes it passes on at once
_CALL_SECONDS = 30.0  # seconds in which the loop must have called a function


@dataclass(eq=False)
class _Connection:
    """Connection of a worker, and the one to the service that belongs to it."""

    near: asyncio.StreamWriter  # to the worker
    far: asyncio.StreamWriter  # to the service
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def reset(self, near: bool = True, far: bool = True) -> None:
        for wanted, writer in ((near, self.near), (far, self.far)):
            if not wanted:
                continue
            socket = writer.get_extra_info("socket")  # uvloop has None for what ended before it was asked
            if socket is not None:
                with contextlib.suppress(OSError, ValueError):  # it has been closed already
                    reset_when_closed(socket)
            writer.transport.abort()


class ProxyLink:
    """Link from one worker to one service: its connections, and how they fail at present."""

    def __init__(self, name: str, target: Address, rate: float = math.inf) -> None:
        self.name = name  # name of the link, such as "w0>ps-1"
        self.target = target  # address of the service
        self.address = target  # address to which the worker connects
        self.bytes = 0  # bytes passed so far
        self.held = 0  # bytes that had to wait longer than the link's bandwidth requires, so far
        self.lost = 0  # bytes swallowed so far
        self.refused = 0  # connections refused so far
        self.refusing = False
        self.swallowing = False  # new connections, too, are never answered
        self.rate = rate  # bytes per second of each connection, either way
        self.throttle = math.inf  # likewise, instead of `rate` where that is more
        self.open = asyncio.Event()
        self.open.set()
        self.cut_within = False  # the next message is to be cut in the middle
        self.deaf: set[_Connection] = set()  # connections whose bytes are dropped
        self.ends_known = asyncio.Event()  # set: one side of a connection learns that the other has ended
        self.ends_known.set()
        self.connections: set[_Connection] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the bytes of one connection until one end of it closes."""
        if self.refusing:
            self.refused += 1
            writer.transport.abort()
            return
        if self.swallowing:
            await self._swallow_new(reader, writer)
            return
        try:
            far_reader, far = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()  # as near as a proxy comes to "connection refused"
            return
        connection = _Connection(writer, far)
        self.connections.add(connection)
        connection.tasks = [
            asyncio.create_task(self._pump(connection, reader, far)),
            asyncio.create_task(self._pump(connection, far_reader, writer)),
        ]
        await asyncio.wait(connection.tasks, return_when=asyncio.FIRST_COMPLETED)
        if connection in self.deaf:
            await self.ends_known.wait()
        self._end(connection)

    async def _swallow_new(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Drop all bytes of a new connection until the worker itself gives up."""
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(_CHUNK):
                    self.lost += len(data)
        finally:
            writer.transport.abort()

    def cut(self) -> int:
        """Reset all connections; return their number."""
        connections = list(self.connections)
        for connection in connections:
            connection.reset()
            self._end(connection)
        return len(connections)

    def swallow(self) -> int:
        """Drop all bytes of all connections, as if the peers had vanished; return the number of connections.

        New connections are not answered. One end of a connection does not learn that the other has closed it.
        """
        connections = self.connections - self.deaf
        self.deaf |= connections
        self.swallowing = True
        self.ends_known.clear()
        return len(connections)

    def answer_again(self) -> None:
        """Forward new connections again; earlier ones stay dead until one end of each gives up."""
        self.swallowing = False
        self.ends_known.set()

    def half_open(self, near_ends: bool) -> int:
        """Reset all connections on one side; return their number. `end_half_open` ends the other side."""
        connections = [connection for connection in self.connections if connection not in self.deaf]
        self.ends_known.clear()
        for connection in connections:
            self.deaf.add(connection)
            connection.reset(near=near_ends, far=not near_ends)
        return len(connections)

    def end_half_open(self) -> int:
        """End the connections that were left half open; return their number."""
        deaf = list(self.deaf)
        for connection in deaf:
            connection.reset()
            self._end(connection)
        self.ends_known.set()
        return len(deaf)

    @property
    def _pace(self) -> float:
        """Return the present bandwidth of a connection, in bytes per second."""
        return min(self.rate, self.throttle)

    def _end(self, connection: _Connection) -> None:
        self.connections.discard(connection)
        self.deaf.discard(connection)
        for writer in (connection.near, connection.far):
            writer.close()
        for task in connection.tasks:
            task.cancel()

    async def _pump(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(max(1, int(min(_CHUNK, self._pace * _PIECE_SECONDS)))):
                if not self.open.is_set():
                    self.held += len(data)
                    await self.open.wait()
                if self.throttle < math.inf:
                    self.held += len(data)
                if self._pace < math.inf:
                    await asyncio.sleep(len(data) / self._pace)
                if connection in self.deaf:
                    self.lost += len(data)
                    continue
                if self.cut_within:
                    self.cut_within = False
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    self.cut()
                    return
                self.bytes += len(data)
                writer.write(data)
                await writer.drain()


class Proxy:
    """The links of all workers, on an event loop in a thread; a context manager.

    Args:
        rate: Bytes per second of each connection, either way; infinite by default.
        queue: Bytes that the kernel holds of what a worker sends on a connection and its link has not passed
            on, about; None for the kernel's choice, which may be megabytes.
    """

    def __init__(self, rate: float = math.inf, queue: int | None = None) -> None:
        self.host = "127.0.0.1"  # address of this machine on which links listen that are made from now on
        self._rate = rate
        self._queue = queue
        self.links: dict[str, ProxyLink] = {}  # links by name
        self._loop = uvloop.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="evenpace-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, target: Address) -> Address:
        """Make a link; return the address on which it listens."""
        link = ProxyLink(name, target, self._rate)
        link.address = self._run(self._listen(link))
        self.links[name] = link
        return link.address

    def do(self, action: Callable[[], T]) -> T:
        """Call a function in the loop's thread, in which all methods of a link must be called."""

        async def call() -> T:
            return action()

        return self._run(call())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_SECONDS)

    async def _listen(self, link: ProxyLink) -> Address:
        listening = socket.create_server((self.host, 0))
        if self._queue is not None:  # connections have that of the socket that accepts them
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._queue)
        server = await asyncio.start_server(link.serve, sock=listening, limit=_CHUNK)
        self._servers.append(server)
        return Address(*server.sockets[0].getsockname()[:2])

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for link in self.links.values():
            link.cut()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
