"""Many workers in one process: reports sent over a connection each, answers read as they come, by epoll."""

import resource
import select
import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from thriftpy2.thrift import TMessageType

import idl
from idl.errors import ProtocolError
from rpc import codec
from rpc.address import Address
from rpc.credentials import Credentials

_wire = idl.batchsize_manager

SAMPLES_PER_WORKER = 64


class Load:
    """The workers of one job, all joined; a context manager.

    Args:
        address: The manager's.
        workers: How many, each with a connection.
        credentials: To speak TLS; None for plain TCP.

    Attributes:
        counts: The batch sizes that the last answers gave, by worker.
    """

    def __init__(self, address: Address, workers: int, credentials: Credentials | None = None) -> None:
        allow_files(workers + 100)
        self._total = SAMPLES_PER_WORKER * workers
        self._identities = [idl.common.Identity("bench", f"worker-{i}", f"{i:032x}") for i in range(workers)]
        self._iteration = 0
        self._poll = select.epoll()
        self._connections: dict[int, socket.socket] = {}
        self.counts: list[int] = []
        context = credentials.contexts(server=False).current() if credentials else None
        for _ in self._identities:
            connection = socket.create_connection(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                connection = context.wrap_socket(connection, server_hostname=address.host)
            self._connections[connection.fileno()] = connection
            self._poll.register(connection, select.EPOLLIN)
        spec = _wire.JobSpec(
            dataset_size=10**9, total_batch_size=self._total, seed=0, shuffle=False, drop_last=True
        )
        bounds = _wire.Bounds(minimum=1, maximum=10**6, granularity=1)
        joins = [
            _frame("join", 0, _wire.JoinRequest(identity=identity, job=spec, bounds=bounds))
            for identity in self._identities
        ]
        self._take(self._exchange(joins), "join", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.close()
        self._poll.close()

    def round(self, times: Sequence[float], cpu: Sequence[float], memory: Sequence[float]) -> float:
        """One barrier round: everybody reports, everybody gets its next part; its counts are checked.

        Args:
            times: Each worker's batch processing time, in seconds.
            cpu: Each worker's usage, from 0 to 1.
            memory: Likewise.

        Returns:
            Seconds from the first report sent to the last answer received.
        """
        frames = [
            _frame(
                "report",
                self._iteration + 1,
                _wire.ReportRequest(
                    identity=identity,
                    iteration=self._iteration,
                    batch_processing_time=times[i],
                    waiting_time=0.0,
                    cpu_usage=cpu[i],
                    memory_usage=memory[i],
                ),
            )
            for i, identity in enumerate(self._identities)
        ]
        began = time.perf_counter()
        answers = self._exchange(frames)
        seconds = time.perf_counter() - began
        self._iteration += 1
        self._take(answers, "report", self._iteration)
        return seconds

    def _exchange(self, frames: list[bytes]) -> dict[int, bytes]:
        """Send everybody's frame, then read everybody's answer, by connection."""
        for connection, frame in zip(self._connections.values(), frames, strict=True):
            connection.sendall(frame)
        answers: dict[int, bytes] = {}
        partial: dict[int, bytes] = {}
        while len(answers) < len(self._connections):
            for descriptor, _ in self._poll.poll(60):
                data = partial.pop(descriptor, b"") + self._connections[descriptor].recv(4096)
                if len(data) >= 4 and len(data) == 4 + codec.LENGTH.unpack_from(data)[0]:
                    answers[descriptor] = data[4:]
                elif data:
                    partial[descriptor] = data
                else:
                    raise ProtocolError(f"iteration {self._iteration}: the server closed a connection")
        return answers

    def _take(self, answers: dict[int, bytes], method: str, iteration: int) -> None:
        """A benchmark is worth nothing unless the answers are right."""
        self.counts = []
        for descriptor in self._connections:
            result = codec.decode(answers[descriptor], getattr(_wire.BatchSizeManager, f"{method}_result"))
            codec.raise_declared(result)
            if result.success.assignment.iteration != iteration:
                raise ProtocolError(f"iteration {iteration}: an answer for {result.success.assignment}")
            self.counts.append(result.success.assignment.count)
        if sum(self.counts) != self._total:
            raise ProtocolError(
                f"iteration {iteration}: the counts sum to {sum(self.counts)}, not {self._total}"
            )


def allow_files(count: int) -> int:
    """Raise this process's limit of open files, and so that of what it starts, as far as need be and allowed.

    Returns:
        The limit in force; it is below `count` where no more are allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < count:
        soft = count if hard == unlimited else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count if soft == unlimited else soft


def _frame(method: str, sequence: int, request: Any) -> bytes:
    arguments = getattr(_wire.BatchSizeManager, f"{method}_args")(request)
    return codec.frame(codec.encode(codec.Header(method, TMessageType.CALL, sequence), arguments))
