"""The order of what a manager does after an event of a job: answers to workers, and what goes to the disk."""

import asyncio
import contextlib
import sqlite3
import time

import pytest
from thriftpy2.thrift import TMessageType

import idl
from batchsize_manager.config import ManagerConfig
from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerService
from batchsize_manager.storage.state_format import STATE_FILE
from rpc import codec
from rpc.counters import MethodTally
from rpc.service import Call

_wire = idl.batchsize_manager
WORKERS = "ab"

pytestmark = pytest.mark.usefixtures("time_to_close")


class Peer:
    """A worker's connection, which notes how many records wait for the disk when an answer is sent."""

    def __init__(self, service: ManagerService) -> None:
        self.service = service
        self.active_at = time.monotonic()
        self.waiting: list[int] = []

    def answer(self, parts: list[bytes | memoryview]) -> None:
        """Note it."""
        assert self.service.state_writer is not None
        self.waiting.append(self.service.state_writer.pending)

    def is_sending(self) -> bool:
        """Return that all has been sent."""
        return False


def call(peer: Peer, method: str, request: object) -> Call:
    """Return a call of a worker's."""
    result = getattr(_wire.BatchSizeManager, f"{method}_result")
    return Call(codec.Header(method, TMessageType.CALL, 0), request, result, peer, MethodTally())


def identity(worker: str) -> object:
    """Return who calls."""
    return idl.common.Identity("job", worker, worker)


async def until(condition) -> None:
    """Wait for the writer's thread."""
    while not condition():
        await asyncio.sleep(0.01)


def test_workers_are_answered_before_an_iteration_with_a_change_goes_to_the_disk(tmp_path):
    """When the answers leave, no record waits for the writer; afterwards the record, event and state do."""

    async def train() -> None:
        service = ManagerService(ManagerConfig(state=tmp_path, job=JobConfig(workers=2)))
        writer = service.state_writer
        peers = {worker: Peer(service) for worker in WORKERS}
        # An epoch of one batch; the second has another size.
        spec = _wire.JobSpec(8, 8, 0, True, False, schedule={1: 4})
        for worker, peer in peers.items():
            request = _wire.JoinRequest(identity(worker), spec, _wire.Bounds(1, 8, 1))
            service.handle(call(peer, "join", request))
        await until(lambda: all(peer.waiting for peer in peers.values()) and not writer.pending)
        with contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # nothing that is put is written now
            for worker, peer in peers.items():
                request = _wire.ReportRequest(identity(worker), 0, 0.1, 0.0, 0.0, 0.0)
                service.handle(call(peer, "report", request))
            assert [peer.waiting[1:] for peer in peers.values()] == [[0], [0]]
            assert service.jobs[0].job.planner.batch_size == 4
            assert writer.pending == 1 + 2 + 1 + 1  # the record of two workers, the event, the state
            other.execute("ROLLBACK")
        await until(lambda: not writer.pending)
        service.stop()

    asyncio.run(train())
