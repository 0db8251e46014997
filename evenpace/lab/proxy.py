"""A TCP proxy between workers and services: links of some bandwidth, on which all may go wrong.

They can be cut, stalled, throttled, half closed, or swallow all that comes. The proxy forwards bytes, and
knows nothing of what they mean. It runs on an event loop in a thread of its own.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from rpc.address import Address
from rpc.dial import reset_when_closed

T = TypeVar("T")

_CHUNK = 65_536  # bytes
_PIECE_SECONDS = 0.01  # that a link of limited bandwidth takes for what it passes on at once
_CALL_SECONDS = 30.0  # for the loop to do what it is told


@dataclass(eq=False)
class _Connection:
    """A connection of a worker, and the one to the service that belongs to it."""

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


class Link:
    """One worker's way to one service: the connections that it has, and what is wrong with them now.

    Attributes:
        name: Such as "w0>ps-1".
        target: The service's address.
        address: Where the worker connects to.
        bytes: Passed so far.
        held: Bytes that had to wait so far, for longer than the link's bandwidth has them wait.
        lost: Bytes that were swallowed so far.
        refused: Connections that were refused so far.

    Args:
        rate: Bytes per second of each connection, either way; infinite by default.
    """

    def __init__(self, name: str, target: Address, rate: float = math.inf) -> None:
        self.name = name
        self.target = target
        self.address = target
        self.bytes = 0
        self.held = 0
        self.lost = 0
        self.refused = 0
        self.refusing = False
        self.swallowing = False  # new connections, too, are never answered
        self.rate = rate
        self.throttle = math.inf  # bytes per second, instead of `rate` where that is more
        self.open = asyncio.Event()
        self.open.set()
        self.cut_within = False  # the next message is to be cut in the middle
        self.deaf: set[_Connection] = set()  # what comes is dropped
        self.told = asyncio.Event()  # of a deaf connection, one side hears that the other has ended
        self.told.set()
        self.connections: set[_Connection] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until an end of it closes."""
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
            await self.told.wait()
        self._end(connection)

    async def _swallow_new(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer nothing, until the worker itself gives up."""
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(_CHUNK):
                    self.lost += len(data)
        finally:
            writer.transport.abort()

    def cut(self) -> int:
        """Reset all connections; how many there were."""
        connections = list(self.connections)
        for connection in connections:
            connection.reset()
            self._end(connection)
        return len(connections)

    def swallow(self) -> int:
        """Let all connections be deaf, and end none, as if the peers had vanished; how many there were.

        New ones are not answered. What an end of a connection does, the other does not hear.
        """
        connections = self.connections - self.deaf
        self.deaf |= connections
        self.swallowing = True
        self.told.clear()
        return len(connections)

    def answer_again(self) -> None:
        """Let new connections through; those from before stay dead, until one end of each gives up."""
        self.swallowing = False
        self.told.set()

    def half_open(self, near_ends: bool) -> int:
        """Reset all connections on one side; how many there were. `hear_again` ends the others."""
        connections = [connection for connection in self.connections if connection not in self.deaf]
        self.told.clear()
        for connection in connections:
            self.deaf.add(connection)
            connection.reset(near=near_ends, far=not near_ends)
        return len(connections)

    def hear_again(self) -> int:
        """End what was left half open; how many connections that was."""
        deaf = list(self.deaf)
        for connection in deaf:
            connection.reset()
            self._end(connection)
        self.told.set()
        return len(deaf)

    @property
    def _pace(self) -> float:
        """Bytes per second."""
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
    """All links, on an event loop in a thread; a context manager.

    Args:
        rate: Bytes per second of each connection, either way; infinite by default.
    """

    def __init__(self, rate: float = math.inf) -> None:
        self._rate = rate
        self.links: dict[str, Link] = {}
        self._loop = uvloop.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="evenpace-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, target: Address) -> Address:
        """Make a link; where it listens."""
        link = Link(name, target, self._rate)
        link.address = self._run(self._listen(link))
        self.links[name] = link
        return link.address

    def do(self, action: Callable[[], T]) -> T:
        """Call a function in the loop's thread, which all of a link's methods are meant for."""

        async def call() -> T:
            return action()

        return self._run(call())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_SECONDS)

    async def _listen(self, link: Link) -> Address:
        server = await asyncio.start_server(link.serve, "127.0.0.1", 0, limit=_CHUNK)
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
