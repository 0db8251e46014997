"""A manager and a parameter server in threads of this process, for the parts that train with them."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from batchsize_manager.config import ManagerConfig
from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerService
from ps.config import ParameterServerConfig
from ps.service import ParameterServerService
from rpc.address import Address
from rpc.limits import ServerLimits
from rpc.server import Server


@contextlib.contextmanager
def services(policy: str, **job: Any) -> Iterator[tuple[Address, Address]]:
    """Serve a job; the manager's and the shard's addresses."""
    manager = ManagerService(ManagerConfig(policy, job=JobConfig(**job)))
    shard = ParameterServerService(ParameterServerConfig())
    with _serving(manager) as first, _serving(shard) as second:
        yield first, second


@contextlib.contextmanager
def _serving(service: Any) -> Iterator[Address]:
    started: Future[tuple[Address, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        server = Server(service, ServerLimits())
        try:
            address = await server.start(Address("127.0.0.1", 0))
        except BaseException as error:
            started.set_exception(error)
            raise
        started.set_result((address, asyncio.get_running_loop(), stop))
        await stop.wait()
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    address, loop, stop = started.result(timeout=30)
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
