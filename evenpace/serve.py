"""Runs a service in this process until it is told to stop."""

import asyncio
import gc
import logging
import signal
from collections.abc import Callable

import uvloop

from rpc.address import Address
from rpc.peer import ServerLimits
from rpc.server import Server
from rpc.service import Service

log = logging.getLogger(__name__)

_GC_THRESHOLD = 50_000  # new objects before the collector looks at them; Python's own is 700


def serve(
    service: Service, address: Address, limits: ServerLimits, announce: Callable[[Address], None]
) -> None:
    """Serve until SIGINT or SIGTERM, then shut down cleanly.

    Args:
        service: What to serve.
        address: Where; port 0 takes a free one.
        limits: What peers may do.
        announce: Called with the address once peers can connect.

    Raises:
        AddressInUseError, ConnectionLostError: The address cannot be listened on.
    """

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        # What is there by now stays; what calls make has no cycles, so it goes without the collector, whose
        # search through all else would hold up whole barrier rounds.
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        server = Server(service, limits)
        announce(await server.start(address))
        await stop.wait()
        log.info("shutting down")
        await server.stop()

    uvloop.run(run())
