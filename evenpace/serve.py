"""Runs a service in this process until it is told to stop."""

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

_OTHER_FILES = 1000  # than connections that count: libraries, and connections that are being refused
_GC_THRESHOLD = 50_000  # new objects before the collector looks at them; Python's own is 700


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
        service: What to serve.
        address: Where; port 0 takes a free one.
        limits: What peers may do.
        security: Whom it talks to.
        announce: Called with the address once peers can connect.
        beside: What goes on meanwhile, such as an endpoint for metrics.

    Raises:
        InvalidRequestError: Others could reach it there, and it asks them for too little.
        AddressInUseError, ConnectionLostError: The address cannot be listened on.
    """
    server = Server(service, limits, security)
    _allow_connections(limits.connections)

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        # What is there by now stays; what calls make has no cycles, so it goes without the collector, whose
        # search through all else would hold up whole barrier rounds.
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        announce(await server.start(address))
        await stop.wait()
        log.info("shutting down")
        await server.stop()

    with beside(server):
        uvloop.run(run())


def _allow_connections(count: int) -> None:
    """Have the system allow this process so many; short of file descriptors, a server could refuse nobody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        log.warning("%d connections may come, but the system allows %d open files only", count, hard)
        needed = hard
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
