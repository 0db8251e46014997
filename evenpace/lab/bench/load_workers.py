"""Workers by the thousand in one process, each with a connection: they join, report, get their next part.

They do what real workers do, less the training: the batch processing time that one reports follows from its
batch size and a speed of its own. Prints a JSON line for whatever happens, for `load_generators`.
"""

import heapq
import itertools
import json
import random
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thriftpy2.thrift import TApplicationException, TMessageType

import idl
from evenpace.lab.bench.connected_workers import SAMPLES_PER_WORKER
from evenpace.lab.speaker import say
from idl.errors import EvenpaceError, ProtocolError
from rpc import codec
from rpc.address import Address

_wire = idl.batchsize_manager

_NOISE = 0.05  # relative deviation of a batch processing time
_READ = 65536  # bytes
_TURN_SECONDS = 0.1
_START_SECONDS = 600.0  # for all workers of a job to have joined, on a machine that has other things to do
_SEQUENCE = struct.Struct(">i")
# The fields of a report behind the identity, and of an answer from `reported_iteration` to the assignment's
# count, as (type, id, value). Packing them by hand takes a tenth of the codec's time, and it is not the
# generator that is to be measured.
_REPORT = struct.Struct(">bhq bhd bhd bhd bhd bb")
_ANSWER_BEGIN = struct.Struct(">bhq bh bhq")
_ANSWER_END = struct.Struct(">bhq bhq bhq")
_DOUBLE, _I64, _STRUCT = 4, 10, 12


@dataclass(frozen=True)
class GeneratorConfig:
    """What one generator does.

    Attributes:
        host: The manager's.
        port: The manager's.
        jobs: Their names.
        first: Number of this generator's first worker in every job.
        count: How many of each job's workers it has.
        workers: How many a job has in all.
        compute: Seconds from an answer to the next report; 0 to report at once.
        seed: Of the workers' speeds.
    """

    host: str
    port: int
    jobs: tuple[str, ...]
    first: int
    count: int
    workers: int
    compute: float
    seed: int

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "GeneratorConfig":
        """As `to_json` wrote it."""
        values = json.loads(text)
        return cls(**values | {"jobs": tuple(values["jobs"])})


@dataclass(slots=True)
class _Round:
    """One iteration of one job, as far as this generator's workers go."""

    sent: float = 0.0  # when the last report was
    answers: int = 0
    samples: int = 0  # that the answers gave


class _Worker:
    """One worker and its connection."""

    def __init__(self, job: str, number: int, address: Address, speed: float) -> None:
        self.job = job
        self.identity = idl.common.Identity(job, f"worker-{number}", f"{number:032x}")
        self.speed = speed  # samples per second
        self.iteration = 0
        self.count = 0  # samples of the iteration
        self.partial = b""  # an answer that has not arrived as a whole
        self.connection = socket.create_connection(address, timeout=_START_SECONDS)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        self.heartbeat = codec.frame(codec.encode(header, arguments))

    def report(self, batch_processing_time: float) -> bytes:
        """The frame that reports the present iteration."""
        fields = _REPORT.pack(
            *(_I64, 2, self.iteration),
            *(_DOUBLE, 3, batch_processing_time),
            *(_DOUBLE, 4, 0.0),
            *(_DOUBLE, 5, 0.25),
            *(_DOUBLE, 6, 0.5),
            *(0, 0),
        )
        return codec.frame(self._numbered(self._report) + fields)

    def take(self, message: bytes) -> bool:
        """Go on to the next iteration if the message is the answer to the report; whether it is."""
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
        """With the iteration as the sequence id."""
        at = self._sequence_at
        return message[:at] + _SEQUENCE.pack(self.iteration & 0x7FFFFFFF) + message[at + 4 :]


class Generator:
    """All workers of this process. `run` returns when standard input ends."""

    def __init__(self, config: GeneratorConfig) -> None:
        self._config = config
        self._random = random.Random(f"{config.seed} {config.first}")
        self._poll = select.epoll()
        self._workers: dict[int, _Worker] = {}  # by file descriptor
        self._rounds: dict[tuple[str, int], _Round] = {}
        self._due: list[tuple[float, int]] = []  # when who reports, where computing takes time
        self._errors: Counter[str] = Counter()
        self._heartbeat = 0.0  # seconds between two of one worker; 0 for none

    def run(self) -> None:
        """Join all jobs, then report and report."""
        address = Address(self._config.host, self._config.port)
        workers = [
            _Worker(job, number, address, self._random.uniform(32, 128))
            for job in self._config.jobs
            for number in range(self._config.first, self._config.first + self._config.count)
        ]
        self._join(workers)
        say(joined=len(workers))
        sys.stdin.readline()  # until all generators are there
        self._poll.register(sys.stdin, select.EPOLLIN)
        for worker in workers:
            descriptor = worker.connection.fileno()
            self._workers[descriptor] = worker
            self._poll.register(descriptor, select.EPOLLIN)
            self._report(worker, time.monotonic())
        beating = 0.0  # how many heartbeats are due, spread evenly over time
        beaten_at = time.monotonic()
        numbers = itertools.cycle(range(len(workers)))
        while self._turn():
            if self._heartbeat:
                now = time.monotonic()
                beating += (now - beaten_at) * len(workers) / self._heartbeat
                beaten_at = now
                while beating >= 1:
                    self._beat(workers[next(numbers)])
                    beating -= 1
        for worker in self._workers.values():
            worker.connection.close()
        say(errors=self._errors)

    def _join(self, workers: Sequence[_Worker]) -> None:
        spec = _wire.JobSpec(
            dataset_size=10**9,
            total_batch_size=SAMPLES_PER_WORKER * self._config.workers,
            seed=0,
            shuffle=False,
            drop_last=True,
        )
        bounds = _wire.Bounds(minimum=1, maximum=10**6, granularity=1)
        for worker in workers:
            request = _wire.JoinRequest(identity=worker.identity, job=spec, bounds=bounds)
            header = codec.Header("join", TMessageType.CALL, 0)
            call = codec.encode(header, _wire.BatchSizeManager.join_args(request))
            worker.connection.sendall(codec.frame(call))
        for worker in workers:
            with worker.connection.makefile("rb") as stream:
                (length,) = codec.LENGTH.unpack(stream.read(4))
                answer = _answered(stream.read(length), "join")
            if answer.assignment is None or answer.assignment.iteration != 0:
                raise ProtocolError(f"{worker.identity}: the answer to join gave {answer.assignment}")
            worker.count = answer.assignment.count
            self._heartbeat = answer.heartbeat or 0.0

    def _turn(self) -> bool:
        """Deal with what has come and what is due; False when told to end."""
        timeout = max(0.0, self._due[0][0] - time.monotonic()) if self._due else _TURN_SECONDS
        for descriptor, _ in self._poll.poll(timeout):
            if descriptor == sys.stdin.fileno():
                return False
            self._read(self._workers[descriptor])
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, descriptor = heapq.heappop(self._due)
            if descriptor in self._workers:
                self._send(self._workers[descriptor])
        return True

    def _read(self, worker: _Worker) -> None:
        try:
            data = worker.connection.recv(_READ)
            if not data:
                raise ProtocolError("the manager closed the connection")
            if worker.partial:
                data = worker.partial + data
            position = 0
            while len(data) - position >= 4:
                end = position + 4 + codec.LENGTH.unpack_from(data, position)[0]
                if end > len(data):
                    break
                self._take(worker, data[position + 4 : end])
                position = end
            worker.partial = data[position:]
        except (EvenpaceError, OSError) as error:
            self._fail(worker, error)

    def _beat(self, worker: _Worker) -> None:
        """Say that a worker lives, beside its report, as a real one's thread does."""
        if worker.connection.fileno() >= 0:
            try:
                worker.connection.sendall(worker.heartbeat)
            except OSError as error:
                self._fail(worker, error)

    def _take(self, worker: _Worker, message: bytes) -> None:
        done = worker.iteration
        if not worker.take(message):
            if codec.read_header(message)[0].method == "heartbeat":
                _answered(message, "heartbeat")
                return
            answer = _answered(message, "report")
            raise ProtocolError(f"report of iteration {done} was answered with {answer}")
        now = time.monotonic()
        progress = self._rounds[worker.job, done]
        progress.answers += 1
        progress.samples += worker.count
        if progress.answers == self._config.count:
            del self._rounds[worker.job, done]
            say(round=(worker.job, done, progress.sent, now, progress.samples))
        self._report(worker, now)

    def _report(self, worker: _Worker, now: float) -> None:
        """Report the present iteration once it has been computed."""
        if self._config.compute:
            seconds = self._config.compute * self._random.gauss(1, _NOISE)
            heapq.heappush(self._due, (now + seconds, worker.connection.fileno()))
        else:
            self._send(worker)

    def _send(self, worker: _Worker) -> None:
        seconds = max(1e-6, worker.count / worker.speed * self._random.gauss(1, _NOISE))
        frame = worker.report(seconds)
        progress = self._rounds.setdefault((worker.job, worker.iteration), _Round())
        progress.sent = time.monotonic()
        try:
            worker.connection.sendall(frame)
        except OSError as error:
            self._fail(worker, error)

    def _fail(self, worker: _Worker, error: Exception) -> None:
        """A worker that something went wrong with takes no further part."""
        self._errors[f"{type(error).__name__}: {error}"] += 1
        say(error=f"{worker.identity.job} {worker.identity.worker}: {error}")
        del self._workers[worker.connection.fileno()]
        worker.connection.close()


def _answered(message: bytes, method: str) -> Any:
    """What a call was answered with.

    Raises:
        EvenpaceError: An error, or no answer to such a call.
    """
    header, _ = codec.scan(message, len(message))
    if header.type == TMessageType.EXCEPTION:
        raise ProtocolError(codec.decode(message, TApplicationException).message)
    if header.method != method:
        raise ProtocolError(f"{method} was answered with {header}")
    result = codec.decode(message, getattr(_wire.BatchSizeManager, f"{method}_result"))
    codec.raise_declared(result)
    return result.success


if __name__ == "__main__":
    try:
        Generator(GeneratorConfig.from_json(sys.argv[1])).run()
    except (EvenpaceError, OSError) as error:
        say(failed=f"{type(error).__name__}: {error}")
        sys.exit(1)
