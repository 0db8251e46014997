"""Many workers in one process, each with a connection: they join, report, and receive assignments.

They act as real workers do, without training.
"""

import resource
import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Any, Self

from thriftpy2.thrift import TApplicationException, TMessageType

import idl
from idl.errors import ProtocolError
from rpc import codec
from rpc.address import Address
from rpc.credentials import Credentials

_wire = idl.batchsize_manager

SAMPLES_PER_WORKER = 64
_START_SECONDS = 600.0  # seconds until all workers of a job have joined, at most, also on a busy machine
_SEQUENCE = struct.Struct(">i")
# The fields of a report behind the identity, and of an answer from `reported_iteration` to the assignment's
# count, as (type, id, value). Packing them by hand takes a tenth of the codec's time, and it is not the
# generator that is to be measured.
_REPORT = struct.Struct(">bhq bhd bhd bhd bhd bb")
_ANSWER_BEGIN = struct.Struct(">bhq bh bhq")
_ANSWER_END = struct.Struct(">bhq bhq bhq")
_DOUBLE, _I64, _STRUCT = 4, 10, 12


class Worker:
    """One worker and its connection."""

    def __init__(
        self, job: str, number: int, address: Address, context: ssl.SSLContext | None = None
    ) -> None:
        self.job = job
        self.identity = idl.common.Identity(job, f"worker-{number}", f"{number:032x}")
        self.iteration = 0  # iteration that it reports next
        self.count = 0  # its samples in that iteration
        self.partial = b""  # bytes of an answer that has not arrived as a whole
        self.connection = socket.create_connection(address, timeout=_START_SECONDS)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.connection = context.wrap_socket(self.connection, server_hostname=address.host)
        call = codec.Header("report", TMessageType.CALL, 0)
        # Both structs end with a stop byte, behind which nothing comes.
        arguments = _wire.BatchSizeManager.report_args(_wire.ReportRequest(identity=self.identity))
        self._report = codec.encode(call, arguments)[:-2]
        reply = codec.Header("report", TMessageType.REPLY, 0)
        result = _wire.BatchSizeManager.report_result(success=_wire.AssignmentReply(identity=self.identity))
        self._answer = codec.encode(reply, result)[:-2]
        self._sequence_at = 8 + len("report")
        beat = _wire.HeartbeatRequest(identity=self.identity, attempt=0)
        header = codec.Header("heartbeat", TMessageType.CALL, 0)
        arguments = _wire.BatchSizeManager.heartbeat_args(beat)
        self.heartbeat = codec.frame(codec.encode(header, arguments))  # frame of a heartbeat

    def report(self, batch_processing_time: float, cpu_usage: float = 0.25, memory: float = 0.5) -> bytes:
        """Return the frame that reports the present iteration."""
        fields = _REPORT.pack(
            *(_I64, 2, self.iteration),
            *(_DOUBLE, 3, batch_processing_time),
            *(_DOUBLE, 4, 0.0),
            *(_DOUBLE, 5, cpu_usage),
            *(_DOUBLE, 6, memory),
            *(0, 0),
        )
        return codec.frame(self._numbered(self._report) + fields)

    def take(self, message: bytes) -> bool:
        """Go on to the next iteration if the message answers the report; return whether it does."""
        following = self.iteration + 1
        expected = self._numbered(self._answer) + _ANSWER_BEGIN.pack(
            *(_I64, 2, self.iteration), *(_STRUCT, 3), *(_I64, 1, following)
        )
        if not message.startswith(expected) or len(message) < len(expected) + _ANSWER_END.size:
            return False
        *_, count = _ANSWER_END.unpack_from(message, len(expected))
        self.iteration, self.count = following, count
        return True

    def _numbered(self, message: bytes) -> bytes:
        """Return the message with the iteration as its sequence id."""
        at = self._sequence_at
        return message[:at] + _SEQUENCE.pack(self.iteration & 0x7FFFFFFF) + message[at + 4 :]


def join(workers: Sequence[Worker], size: int) -> float:
    """Let workers join their jobs, of `size` workers each; return the seconds between heartbeats, or 0."""
    spec = _wire.JobSpec(
        dataset_size=10**9,
        total_batch_size=SAMPLES_PER_WORKER * size,
        seed=0,
        shuffle=False,
        drop_last=True,
    )
    bounds = _wire.Bounds(minimum=1, maximum=10**6, granularity=1)
    for worker in workers:
        request = _wire.JoinRequest(identity=worker.identity, job=spec, bounds=bounds)
        header = codec.Header("join", TMessageType.CALL, 0)
        worker.connection.sendall(
            codec.frame(codec.encode(header, _wire.BatchSizeManager.join_args(request)))
        )
    heartbeat = 0.0
    for worker in workers:
        with worker.connection.makefile("rb") as stream:
            (length,) = codec.LENGTH.unpack(stream.read(4))
            answer = answered(stream.read(length), "join")
        if answer.assignment is None or answer.assignment.iteration != 0:
            raise ProtocolError(f"{worker.identity}: the answer to join gave {answer.assignment}")
        worker.count = answer.assignment.count
        heartbeat = answer.heartbeat or 0.0
    return heartbeat


def answered(message: bytes, method: str) -> Any:
    """Return the result in the answer to a call of `method`."""
    header, _ = codec.scan(message, len(message))
    if header.type == TMessageType.EXCEPTION:
        raise ProtocolError(codec.decode(message, TApplicationException).message)
    if header.method != method:
        raise ProtocolError(f"{method} was answered with {header}")
    result = codec.decode(message, getattr(_wire.BatchSizeManager, f"{method}_result"))
    codec.raise_declared(result)
    return result.success


class Load:
    """The workers of one job, all joined, which report and are answered together; a context manager."""

    def __init__(self, address: Address, workers: int, credentials: Credentials | None = None) -> None:
        allow_files(workers + 100)
        context = credentials.contexts(server=False).current() if credentials else None
        self._workers = [Worker("bench", number, address, context) for number in range(workers)]
        self._poll = select.epoll()
        for worker in self._workers:
            self._poll.register(worker.connection, select.EPOLLIN)
        join(self._workers, workers)
        self._connections = {worker.connection.fileno(): worker.connection for worker in self._workers}
        for connection in self._connections.values():
            connection.settimeout(None)  # with one, each send and receive takes one more system call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self._connections.values():
            connection.close()
        self._poll.close()

    @property
    def counts(self) -> list[int]:
        """Return the batch sizes in the last answers, by worker."""
        return [worker.count for worker in self._workers]

    def round(self, times: Sequence[float], cpu: Sequence[float], memory: Sequence[float]) -> float:
        """Run one barrier round: every worker reports and receives its next assignment, which is checked.

        Reported are each worker's seconds of processing, and its usage of CPU and memory, from 0 to 1.
        Returned are the seconds from the first report sent to the last answer received.
        """
        values = zip(times, cpu, memory, strict=True)
        frames = [worker.report(*its) for worker, its in zip(self._workers, values, strict=True)]
        began = time.perf_counter()
        answers = self._exchange(frames)
        seconds = time.perf_counter() - began
        # A benchmark is worth nothing unless the answers are right.
        for worker in self._workers:
            message = answers[worker.connection.fileno()]
            if not worker.take(message):
                raise ProtocolError(
                    f"iteration {worker.iteration} was answered with {answered(message, 'report')}"
                )
        if sum(self.counts) != SAMPLES_PER_WORKER * len(self._workers):
            raise ProtocolError(
                f"the counts sum to {sum(self.counts)}, not {SAMPLES_PER_WORKER * len(self._workers)}"
            )
        return seconds

    def _exchange(self, frames: Sequence[bytes]) -> dict[int, bytes]:
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
                    raise ProtocolError("the server closed a connection")
        return answers


def allow_files(count: int) -> int:
    """Raise the limit of open files of this process and its children to `count`, as far as allowed.

    Returned is the limit in force, which is lower where no more are allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < count:
        soft = count if hard == unlimited else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count if soft == unlimited else soft
