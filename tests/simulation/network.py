"""TCP and asyncio's event loop, as far as the product uses them."""

import asyncio
import errno
import math
import os
import select as real_select
import socket as real_socket
from collections import deque

from tests.simulation.modules import futures, like
from tests.simulation.world import World

_HOST = "127.0.0.1"


def _error(kind, number):
    return kind(number, os.strerror(number))


class Endpoint:
    """One side of a connection: what has arrived, and how it ended.

    Attributes:
        is_hole: Whether what is sent vanishes, as where a cable was pulled.
        delay: Further seconds that what is sent takes.
    """

    def __init__(self, process):
        self.process = process
        self.peer = self.socket = None
        self.arrived = bytearray()
        self.has_ended, self.error = False, None
        self.is_hole, self.delay = False, 0.0
        self.changed = lambda: None  # called when something has arrived
        self._last = 0.0  # when what was sent last arrives: nothing overtakes it
        process.endpoints[self] = None

    def send(self, data):
        """Send bytes."""
        self._deliver(self.peer.arrive, data)

    def end(self):
        """Send the end."""
        self._deliver(self.peer.arrive_end, None)

    def reset(self):
        """Break the connection, on this side at once."""
        self.close()
        self._deliver(self.peer.arrive_end, _error(ConnectionResetError, errno.ECONNRESET))

    def close(self):
        """Forget the connection."""
        self.process.endpoints.pop(self, None)

    def arrive(self, data):
        """Take bytes that have arrived."""
        self.arrived += data
        self.changed()

    def arrive_end(self, error):
        """Take the end, or the error that broke the connection."""
        self.has_ended, self.error = True, self.error or error
        self.changed()

    def _deliver(self, action, argument):
        if not self.is_hole:
            world = World.current
            latency = world.latency() + self.delay + world.parted(self.process, self.peer.process)
            self._last = max(math.nextafter(self._last, math.inf), world.now + latency)
            world.at(self._last - world.now, None, action, argument)


class Socket:
    """A client's `socket.socket`, whose thread waits for what it reads."""

    def __init__(self, family=real_socket.AF_INET, type=real_socket.SOCK_STREAM, proto=0, fileno=None):  # noqa: A002
        self._process = World.current.running
        self._timeout = None
        self._waiters = deque()
        self._is_closed = False
        self.endpoint = None
        self._address = None

    def settimeout(self, seconds):
        """Set for how long calls wait."""
        self._timeout = seconds

    def setsockopt(self, *option):
        """Do nothing."""

    def getpeername(self):
        """Return the address of the other side."""
        return self._address

    def getsockname(self):
        """Return the address that it was bound to, or one of this side."""
        return self._address if self.endpoint is None else (_HOST, 1)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def bind(self, address):
        """Take an address to listen on; of port 0 a free one."""
        self._address = (address[0], address[1] or World.current.free_port())

    def listen(self, backlog=0):
        """Listen there.

        Raises:
            OSError: Another process does.
        """
        self._arrived = deque()
        _listen(self._address, self)

    @property
    def process(self):
        """The process that has it."""
        return self._process

    def take(self, endpoint):
        """Take a connection, for `accept`."""
        self._arrived.append(endpoint)
        self._wake()

    def accept(self):
        """Return the next connection, once there is one, and its address."""
        while not self._arrived:
            self._check()
            World.current.wait(self._waiters, self._timeout)
        made = Socket()
        made.have(self._arrived.popleft())
        return made, (_HOST, 2)

    def connect(self, address):
        """Connect; to a process that is frozen, too, whose kernel is not."""
        world = World.current
        self._wait(world.latency())
        if (listener := world.listeners.get(tuple(address))) is not None:
            parted = world.parted(self._process, listener.process)
            if self._timeout is not None and parted > self._timeout:
                self._wait(self._timeout)
                raise _error(TimeoutError, errno.ETIMEDOUT)
            self._wait(parted)
        if (listener := world.listeners.get(tuple(address))) is None:
            raise _error(ConnectionRefusedError, errno.ECONNREFUSED)
        self._address = tuple(address)
        ours, theirs = Endpoint(self._process), Endpoint(listener.process)
        ours.peer, theirs.peer = theirs, ours
        self.have(ours)
        listener.take(theirs)

    def have(self, endpoint):
        """Be this side of a connection."""
        self.endpoint = endpoint
        endpoint.changed = self._wake
        endpoint.socket = self

    def send(self, data):
        """Send bytes: all of them, since what is on its way is never too much."""
        self._check()
        self.endpoint.send(bytes(data))
        return len(data)

    def sendall(self, data):
        """Send bytes."""
        self.send(data)

    def recv_into(self, buffer, nbytes=0):
        """Fill a buffer with what has arrived, once something has."""
        while not self.endpoint.arrived:
            self._check()
            if self.endpoint.has_ended:
                return 0
            if not World.current.wait(self._waiters, self._timeout):
                raise TimeoutError("timed out")
        count = min(len(buffer), len(self.endpoint.arrived))
        buffer[:count] = self.endpoint.arrived[:count]
        del self.endpoint.arrived[:count]
        return count

    def recv(self, size):
        """Return what has arrived, once something has."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def shutdown(self, how):
        """End the connection in both directions, whatever another thread waits for."""
        if self.endpoint is None:
            self._is_closed = True
        else:
            self.endpoint.end()
            self.endpoint.arrive_end(_error(BrokenPipeError, errno.EPIPE) if how else None)
        self._wake()

    def close(self):
        """Close it."""
        if not self._is_closed and self.endpoint is not None:
            self.endpoint.end()
            self.endpoint.close()
        if World.current.listeners.get(self._address) is self:
            del World.current.listeners[self._address]
        self._is_closed = True
        self._wake()

    @property
    def is_readable(self):
        """Whether there is something to read, or the end."""
        return bool(self.endpoint.arrived) or self.endpoint.has_ended

    def _check(self):
        if self._is_closed:
            raise _error(OSError, errno.EBADF)
        if self.endpoint is not None and self.endpoint.error is not None:
            raise self.endpoint.error

    def _wait(self, seconds):
        World.current.wait(self._waiters, seconds)
        if self._is_closed:
            raise _error(OSError, errno.EBADF)

    def _wake(self):
        World.current.wake(self._waiters)


def _listen(address, listener):
    if address in World.current.listeners:
        raise _error(OSError, errno.EADDRINUSE)
    World.current.listeners[address] = listener


def _getaddrinfo(host, port, **options):
    return [(real_socket.AF_INET, real_socket.SOCK_STREAM, 6, "", (host, port))]


def _create_server(address, **options):
    made = Socket()
    made.bind(address)
    made.listen()
    return made


def _create_connection(address, timeout=None, **options):
    made = Socket()
    made.settimeout(timeout)
    made.connect(address)
    return made


socket = like(
    real_socket,
    socket=Socket,
    SocketType=Socket,
    getaddrinfo=_getaddrinfo,
    create_server=_create_server,
    create_connection=_create_connection,
)


class _Poll:
    """`select.poll` of one socket, which does not wait."""

    def register(self, one, events=0):
        self._socket = one

    def poll(self, timeout=None):
        assert timeout == 0
        return [(0, real_select.POLLIN)] if self._socket.is_readable else []


select = like(real_select, poll=_Poll)


class Transport(asyncio.Transport):
    """A service's side of a connection."""

    def __init__(self, loop, endpoint, factory):
        super().__init__()
        self._loop = loop
        self._endpoint = endpoint
        self._is_closing = self._is_lost = self._is_paused = False
        self._protocol = None
        endpoint.changed = lambda: loop.call_soon(self._take)
        loop.call_soon(self._begin, factory)

    def get_extra_info(self, name, default=None):
        """Return the peer's address; of nothing else anything is known."""
        return (_HOST, 2) if name == "peername" else default

    def set_write_buffer_limits(self, high=None, low=None):
        """Do nothing: what is written is on its way at once."""

    def get_write_buffer_size(self):
        """Return 0, since what is written is on its way at once."""
        return 0

    def is_closing(self):
        """Return whether it is closed, or about to be."""
        return self._is_closing

    def can_write_eof(self):
        """Return True."""
        return True

    def write_eof(self):
        """Send the end."""
        self._endpoint.end()

    def write(self, data):
        """Send bytes."""
        if not self._is_closing:
            self._endpoint.send(bytes(data))

    def writelines(self, list_of_data):
        """Send bytes."""
        self.write(b"".join(map(bytes, list_of_data)))

    def pause_reading(self):
        """Leave what arrives where it is."""
        self._is_paused = True

    def resume_reading(self):
        """Take what has arrived."""
        self._is_paused = False
        self._loop.call_soon(self._take)

    def close(self):
        """Send the end, and take no more."""
        if not self._is_closing:
            self._endpoint.end()
            self._end()

    def abort(self):
        """Break the connection."""
        if not self._is_closing:
            self._endpoint.reset()
            self._end()

    def _begin(self, factory):
        self._protocol = factory()
        self._protocol.connection_made(self)
        self._take()

    def _take(self):
        arrived = self._endpoint.arrived
        while arrived and not self._is_paused and not self._is_closing and self._protocol is not None:
            buffer = self._protocol.get_buffer(-1)
            count = min(len(buffer), len(arrived))
            buffer[:count] = arrived[:count]
            del arrived[:count]
            self._protocol.buffer_updated(count)
        if self._endpoint.has_ended and not (arrived and self._is_paused):
            self._end()

    def _end(self):
        self._is_closing = True
        self._endpoint.close()
        if not self._is_lost and self._protocol is not None:
            self._is_lost = True
            self._loop.call_soon(self._protocol.connection_lost, None)


class _Listener:
    def __init__(self, loop, factory):
        self._loop, self._factory = loop, factory
        self.process = loop.process

    def take(self, endpoint):
        """Take a connection."""
        Transport(self._loop, endpoint, self._factory)


class _ListeningServer:
    def __init__(self, address):
        self._address = address
        self.sockets = [self]

    def getsockname(self):
        return self._address

    def close(self):
        World.current.listeners.pop(self._address, None)


class Loop(asyncio.AbstractEventLoop):
    """The event loop of a process: one thread, which runs what is due in order."""

    def __init__(self, process):
        self.process = process
        self._ready, self._waiters = deque(), deque()
        self._is_over = False
        World.current.spawn(process, self._run)

    def _run(self):
        while not self._is_over:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    asyncio._set_running_loop(self)
                    handle._run()
                    asyncio._set_running_loop(None)
            if not self._is_over:
                World.current.wait(self._waiters)

    def stop(self):
        """Run nothing more than what is due now."""
        self._is_over = True

    def time(self):
        """Return the time in seconds."""
        return World.current.now

    def get_debug(self):
        """Return False."""
        return False

    def is_running(self):
        """Return True."""
        return True

    def is_closed(self):
        """Return False."""
        return False

    def call_exception_handler(self, context):
        """Note an error of a callback."""
        if not World.current.over and not self.process.is_dead:
            error = context.get("exception") or RuntimeError(context["message"])
            World.current.failures.append((self.process.name, error))

    def call_soon(self, callback, *arguments, context=None):
        """Call a function after those that are due already."""
        handle = asyncio.Handle(callback, arguments, self, context)
        self._add(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay, callback, *arguments, context=None):
        """Call a function after some seconds."""
        return self.call_at(self.time() + delay, callback, *arguments, context=context)

    def call_at(self, when, callback, *arguments, context=None):
        """Call a function at a time."""
        handle = asyncio.TimerHandle(when, callback, arguments, self, context)
        World.current.at(when - self.time(), self.process, self._add, handle)
        return handle

    def _add(self, handle):
        self._ready.append(handle)
        World.current.wake(self._waiters)

    def _timer_handle_cancelled(self, handle):
        pass

    def create_future(self):
        """Return a future."""
        return asyncio.Future(loop=self)

    def create_task(self, coro, *, name=None, context=None):
        """Run a coroutine."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # it ends with its process
        return task

    def run_in_executor(self, executor, function, *arguments):
        """Call a function in a thread."""
        future = self.create_future()

        def settle(set_, value):
            if not future.done():
                set_(value)

        def run():
            try:
                result = function(*arguments)
            except Exception as error:  # noqa: BLE001 - raised where the result is awaited
                self.call_soon(settle, future.set_exception, error)
            else:
                self.call_soon(settle, future.set_result, result)

        World.current.spawn(self.process, run)
        return future

    async def create_server(self, factory, host, port, **options):
        """Listen on an address.

        Raises:
            OSError: Another process listens there.
        """
        address = (host, port or World.current.free_port())
        _listen(address, _Listener(self, factory))
        return _ListeningServer(address)


def run(main):
    """Run a coroutine in an event loop of this process, and wait for its result, as `uvloop.run`."""
    loop, done = Loop(World.current.running), futures.Future()

    async def whole():
        try:
            done.set_result(await main)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)
        loop.stop()

    loop.call_soon(lambda: loop.create_task(whole()))
    return done.result()
