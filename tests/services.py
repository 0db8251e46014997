"""Services for tests to talk to, as processes and in this process, and well-behaved workers for them."""

import asyncio
import contextlib
import functools
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import uvloop

import idl
from batchsize_manager.job.config import JobConfig
from batchsize_manager.partitions.partitioned_job import PartitionsConfig
from batchsize_manager.partitions.service import DataPartitionService
from batchsize_manager.service import ManagerConfig, ManagerService
from evenpace.local.cluster import service
from idl.gradient_norms import StepNorms
from idl.translation import wire_norms
from ps.config import ParameterServerConfig
from ps.service import ParameterServerService
from rpc import codec, tokens
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.limits import ServerLimits
from rpc.processes import Process
from rpc.server import Security, Server
from rpc.service import Service
from worker.session import Session, SessionConfig

ANYWHERE = Address("127.0.0.1", 0)


# -- processes


@contextlib.contextmanager
def service_process(*arguments: str) -> Iterator[Address]:
    """A real service of `evenpace` on a free port."""
    with service(*arguments) as process:
        yield process.address


def manager_process(*options: str) -> contextlib.AbstractContextManager[Address]:
    """A real `evenpace manager` on a free port."""
    return service_process("manager", *options)


def shard_process(*options: str) -> contextlib.AbstractContextManager[Address]:
    """A real `evenpace ps` on a free port."""
    return service_process("ps", *options)


@contextlib.contextmanager
def signalled_process(*arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", Address]]:
    """A real service, with the process itself, for tests that send it signals."""
    with service(*arguments) as process:
        assert process.popen is not None
        yield process.popen, process.address


class RestartableService(Process):
    """A real service that a test kills and starts again, on one port; it ends with the test.

    Args:
        arguments: Of `evenpace`, but for `--listen`.
    """

    def __init__(self, *arguments: str) -> None:
        self._own = address_of_our_own()  # nobody else gets it while the service is away
        command = [sys.executable, "-m", "evenpace", *arguments, "--listen", str(self._own)]
        super().__init__(arguments[0], command, Path(os.devnull), listens=True)

    @property
    def address(self) -> Address:
        """Return the address on which it listens."""
        return self._own

    def start(self) -> None:
        """Start it, and wait until it listens."""
        super().start()
        assert super().address == self._own

    def stop(self) -> int:
        """Ask it to end, and wait until it has; its exit status."""
        assert self.popen is not None
        return ends_with(self.popen, signal.SIGTERM)

    def kill(self) -> None:
        """Let it have no time to do anything."""
        assert self.popen is not None
        assert ends_with(self.popen, signal.SIGKILL) == -signal.SIGKILL


def restartable_manager(folder: Path, *options: str) -> RestartableService:
    """A real `evenpace manager` that keeps its state in a folder."""
    return RestartableService("manager", "--state", str(folder), *options)


def address_of_our_own() -> Address:
    """An address that stays free until somebody listens there, and while who listened is away.

    Its port is below those that the kernel gives to clients, lest one of these gets it, be it one that looks
    for who was there; and each process of tests has ports of its own.
    """
    ports, _ = _our_ports()
    while True:
        with contextlib.closing(socket.socket()) as attempt, contextlib.suppress(OSError):
            attempt.bind((ANYWHERE.host, next(ports)))
            return Address(*attempt.getsockname())


@functools.cache
def _our_ports() -> tuple[Iterator[int], socket.socket]:
    """The ports of this process, and the socket whose name says that they are taken as long as it runs."""
    for first in range(20_000, 32_000, 500):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0evenpace-tests-{first}")
        except OSError:
            claim.close()
        else:
            return itertools.cycle(range(first, first + 500)), claim
    raise RuntimeError("all ports from 20000 to 31999 are taken by other processes of tests")


def has_ended(process: psutil.Process) -> bool:
    """Return whether another process's child has ended, waited for or not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def cpu_seconds(pid: int) -> float:
    """The CPU time of all threads of a process of ours, exact where the kernel's files count in ticks."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes a clock's id


def is_frozen(popen: "subprocess.Popen[Any]") -> bool:
    """Return whether a process has stopped itself by `scripts/freeze_and_run.py`; it must not have ended."""
    assert popen.poll() is None
    return bool(psutil.Process(popen.pid).status() == psutil.STATUS_STOPPED)


def ends_with(popen: "subprocess.Popen[Any]", number: signal.Signals) -> int:
    """The exit status of a process that is sent a signal."""
    popen.send_signal(number)
    return popen.wait(timeout=120)


# -- in this process


@contextlib.contextmanager
def serving(
    service: Service,
    limits: ServerLimits | None = None,
    address: Address = ANYWHERE,
    security: Security | None = None,
) -> Iterator[Address]:
    """Serve in a thread of this process, with limits of its own."""
    instance = Server(service, limits or ServerLimits(), security or Security())
    started: Future[tuple[Address, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        stop = asyncio.Event()
        try:
            started.set_result((await instance.start(address), asyncio.get_running_loop(), stop))
        except BaseException as error:
            started.set_exception(error)
            raise
        await stop.wait()
        await instance.stop()

    thread = threading.Thread(target=uvloop.run, args=(run(),))
    thread.start()
    try:
        listening, loop, stop = started.result(timeout=120)
        yield listening
        loop.call_soon_threadsafe(stop.set)
    except BaseException:
        if started.done() and started.exception() is None:
            _, loop, stop = started.result()
            loop.call_soon_threadsafe(stop.set)
        raise
    finally:
        thread.join(timeout=120)


def manager_service(workers: int = 1, policy: str = ManagerConfig.policy, **job: Any) -> ManagerService:
    """A BatchSizeManager whose jobs start with so many workers."""
    return ManagerService(ManagerConfig(policy=policy, job=JobConfig(workers=workers, **job)))


def shard_service(**config: Any) -> ParameterServerService:
    """A shard of the parameter server."""
    return ParameterServerService(ParameterServerConfig(**config))


def partition_service(workers: int, **changes: Any) -> DataPartitionService:
    """A DataPartitionManager whose jobs start with so many workers."""
    return DataPartitionService(PartitionsConfig(workers, **changes))


def with_token(key: Path, job: str) -> Credentials:
    """Credentials with a token of a job, or of all jobs, signed with a key file's first key."""
    return Credentials(token_text=tokens.issue(tokens.TokenKeys(key), job, 0))


class OpenServices:
    """A manager, and shards whose contributions can be looked at, in this process.

    Args:
        workers: Workers of each job.
        job: As `manager_service` takes it.

    Attributes:
        manager: The manager's address.
        addresses: The shards' addresses, as sessions have them.
    """

    def __init__(self, workers: int, shards: int = 1, **job: Any) -> None:
        self.shards = [shard_service() for _ in range(shards)]
        self._manager = manager_service(workers, **job)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.manager = self._stack.enter_context(serving(self._manager))
        self.addresses = [self._stack.enter_context(serving(shard)) for shard in self.shards]
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def session(self, name: str, **options: Any) -> Session:
        """Make a worker's session, which ends with the services."""
        config = SessionConfig(
            self.manager, tuple(self.addresses), worker=name, barrier_timeout=60, **options
        )
        return self._stack.enter_context(contextlib.closing(Session(config)))

    def arrived(self) -> list[int]:
        """Return for each shard the elements of gradients for the present step that have arrived."""
        jobs = [job for shard in self.shards for job in shard.jobs]
        return [sum(one.done for one in list(job.shard._contributions)) for job in jobs]

    def complete(self) -> bool:
        """Return whether a shard has all of the gradient for its step."""
        return any(job.shard.is_complete for shard in self.shards for job in shard.jobs)


# -- well-behaved workers


class MemberWorker:
    """The one worker of a job at the manager; it knows what each answer must be.

    Args:
        address: The manager's.
        name: The job's; drawn if left out.
        credentials: Where the manager asks for them.
        changes: Other fields of the job or the bounds.
    """

    BATCH = 10
    DATASET = 1000

    def __init__(
        self,
        address: Address,
        name: str | None = None,
        credentials: Credentials | None = None,
        **changes: Any,
    ) -> None:
        self.identity = idl.common.Identity(name or f"job-{uuid.uuid4().hex}", "good", uuid.uuid4().hex)
        self.client = Client(
            idl.batchsize_manager.BatchSizeManager,
            address,
            "manager",
            call_timeout=120,
            credentials=credentials,
        )
        reply = self.client.call("join", join_request(self.identity, **changes))
        self.run = reply.run
        self.iteration = 0
        self._check(reply.assignment)

    def iterate(self, norms: StepNorms | None = None, **times: float) -> None:
        """Go on by one iteration, and see that the answer is the right one.

        Args:
            norms: Reported with it.
            times: Further fields of the report.
        """
        request = idl.batchsize_manager.ReportRequest(
            self.identity, self.iteration, 0.5, 0.0, 0.5, 0.5, norms=wire_norms(norms), **times
        )
        reply = self.client.call("report", request)
        self.iteration += 1
        assert reply.identity == self.identity
        assert reply.reported_iteration == self.iteration - 1
        self._check(reply.assignment)

    def _check(self, assignment: Any) -> None:
        epoch, start = divmod(self.BATCH * self.iteration, self.DATASET)
        whole = idl.common.Assignment(self.iteration, epoch, start, self.BATCH, self.BATCH, batch_start=start)
        assert assignment == whole

    def close(self) -> None:
        """Leave the job."""
        self.client.call("leave", idl.batchsize_manager.LeaveRequest(self.identity))
        self.client.close()


class ShardWorker:
    """The one worker of a job at a shard: SGD with lr 1 on float32, from parameters that are all 0.

    Args:
        address: The shard's.
        elements: How many parameters.
        name: The job's; drawn if left out.
        credentials: Where the shard asks for them.
    """

    def __init__(
        self,
        address: Address,
        elements: int = 1000,
        name: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = address
        self.elements = elements
        self.identity = idl.common.Identity(name or f"job-{uuid.uuid4().hex}/run", "good", uuid.uuid4().hex)
        self.client = Client(
            idl.parameter_server.ParameterServer, address, "shard", call_timeout=120, credentials=credentials
        )
        self.version = 0
        self.expected = np.zeros(elements, dtype=np.float32)
        self.client.call("open", open_request(self.identity, elements))
        self.client.call(
            "initialise",
            idl.parameter_server.InitialiseRequest(self.identity, 0),
            bulk=self.expected.data.cast("B"),
        )

    def gradient(self) -> np.ndarray:
        """(elements,) of whole numbers, so that sums are exact; another in each version."""
        return (np.arange(self.elements) % 7 + self.version).astype(np.float32)

    def push_request(self, start: int = 0, count: int = 8, total: int = 8) -> Any:
        """Make the push request for a slice of the next version's batch."""
        assignment = idl.common.Assignment(self.version, 0, start, count, total)
        return idl.parameter_server.PushRequest(self.identity, assignment)

    def push(self, **part: int) -> None:
        """Push the gradient for a slice, by default for the whole batch."""
        self.client.call("push", self.push_request(**part), bulk=self.gradient().data.cast("B"))

    def stepped(self) -> None:
        """Note that the step was taken in which all slices had `gradient`."""
        self.expected -= self.gradient()
        self.version += 1

    def check(self) -> None:
        """Pull, and see that the parameters are the expected ones to the last bit."""
        parameters = np.full(self.elements, np.nan, dtype=np.float32)
        request = idl.parameter_server.PullRequest(self.identity, self.version)
        reply = self.client.call("pull", request, into=parameters.data.cast("B"))
        assert (reply.identity, reply.version) == (self.identity, self.version)
        np.testing.assert_array_equal(parameters, self.expected)

    def iterate(self) -> None:
        """Go on by one step, and see that it is the right one."""
        self.push()
        self.stepped()
        self.check()

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


def send_back(session: Any, manager: Address, iteration: int) -> None:
    """Have the job begin another attempt at an iteration, as if another worker had said so."""
    with contextlib.closing(Client(idl.batchsize_manager.BatchSizeManager, manager, "manager")) as client:
        identity = idl.common.Identity(session.config.job, session.config.worker, session.incarnation)
        wire = idl.batchsize_manager
        attempt = client.call("recover", wire.RecoverRequest(identity, session.assignment.attempt)).attempt
        client.call("rewind", wire.RewindRequest(identity, attempt, iteration))
    session.exchange._shards.fence_from_any_thread(attempt)


def join_request(identity: Any, **changes: Any) -> Any:
    """Make the join request of `MemberWorker`, with other fields of the job or the bounds where given.

    `exchange` is the way in which gradients meet; without, by a parameter server.
    """
    exchange = changes.pop("exchange", None)
    job = {"dataset_size": MemberWorker.DATASET, "total_batch_size": MemberWorker.BATCH, "seed": 1}
    bounds = {"minimum": 1, "maximum": 10**6, "granularity": 1, "at_once": None}
    job |= {name: value for name, value in changes.items() if name not in bounds}
    bounds |= {name: value for name, value in changes.items() if name in bounds}
    return idl.batchsize_manager.JoinRequest(
        identity=identity,
        job=idl.batchsize_manager.JobSpec(**{"shuffle": False, "drop_last": False} | job),
        bounds=idl.batchsize_manager.Bounds(**bounds),
        exchange=exchange,
    )


def open_request(identity: Any, elements: int, **changes: Any) -> Any:
    """Make the open request of `ShardWorker`, with other fields where given."""
    group = idl.parameter_server.ParameterGroup(elements, {"lr": 1.0})
    fields = {"identity": identity, "dtype": "float32", "optimizer": "sgd", "groups": [group]}
    return idl.parameter_server.OpenRequest(**fields | changes)


# -- bare sockets


class Raw:
    """A bare connection, on which a test writes what it likes."""

    def __init__(
        self, address: Address, receive_buffer: int | None = None, source: str | None = None
    ) -> None:
        self.socket = socket.socket()
        if source is not None:
            self.socket.bind((source, 0))
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(120)
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send; a server that has refused and closed meanwhile is no error."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def read(self, count: int) -> bytes:
        """So many bytes, or fewer where the connection ends."""
        data = bytearray()
        while len(data) < count:
            try:
                piece = self.socket.recv(min(count - len(data), 2**18))
            except ConnectionError:
                break
            if not piece:
                break
            data += piece
        return bytes(data)

    def read_frame(self) -> bytes | None:
        """The next frame's bytes; None where the connection ends instead."""
        word = self.read(4)
        return self.read(codec.LENGTH.unpack(word)[0]) if len(word) == 4 else None

    def is_closed(self) -> bool:
        """Return whether the server ends the connection without sending anything."""
        return self.read(1) == b""


# -- workers in threads


def in_threads(*functions: Callable[[], object]) -> None:
    """Run functions at once; raise what any of them raised."""
    errors: list[Exception] = []

    def guarded(function: Callable[[], object]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - raised again below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
