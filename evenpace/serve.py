"""A loop that runs a service in this process until a signal ends it."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
from collections.abc import Callable
from typing import Any

import uvloop

from rpc.address import Address
from rpc.limits import ServerLimits
from rpc.server import Security, Server
from rpc.service import Service

log = logging.getLogger(__name__)

_OTHER_FILES = 1000  # open files besides accepted connections: libraries, and connections being refused
_GC_THRESHOLD = 50_000  # new objects before a garbage collection; Python's own is 700


def serve(
    service: Service,
    address: Address,
    limits: ServerLimits,
    security: Security,
    announce: Callable[[Address], None],
    beside: Callable[[Server], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> None:
    """Serve until SIGINT or SIGTERM, then shut down cleanly.

    Args:
        address: The address to listen on; port 0 takes a free one.
        limits: Limits of what peers may do.
        security: Credentials and the checks of peers.
        announce: Function that is called with the address once peers can connect.
        beside: Makes a context that is open while the server runs, such as an endpoint for metrics.

    Raises:
        InvalidRequestError: Other machines could reach the address without TLS and a token.
        AddressInUseError, ConnectionLostError: The address cannot be listened on.
    """
    server = Server(service, limits, security)
    _allow_connections(limits.connections)

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        # The objects made so far stay, and those made by calls have no cycles, so they are freed without the
        # garbage collector, whose passes would hold up whole barrier rounds.
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        announce(await server.start(address))
        await stop.wait()
        log.info("shutting down")
        await server.stop()

    with beside(server):
        uvloop.run(run())


def _allow_connections(count: int) -> None:
    """Raise the limit of open files for `count` connections; without one left, none could be refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        log.warning("%d connections may come, but the system allows %d open files only", count, hard)
        needed = hard
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
