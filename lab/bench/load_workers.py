"""Thousands of workers in one process, each with a connection: they join, report, and receive assignments.

They act as real workers do, without training: the batch processing time that a worker reports follows from
its batch size and a speed of its own. The process prints a JSON line for each event, for `load_generators`.
"""

import argparse
import heapq
import itertools
import json
import random
import select
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from idl.errors import EvenpaceError, ProtocolError
from lab.bench.connected_workers import Worker, answered, join
from lab.script_options import read_options
from rpc import codec
from rpc.address import Address

_NOISE = 0.05  # relative deviation of a batch processing time
_READ = 65536  # bytes
_TURN_SECONDS = 0.1  # seconds that a turn waits for answers while no report is due


@dataclass(slots=True)
class _Round:
    """One iteration of one job, of this generator's workers alone."""

    sent: float = 0.0  # when the last report was sent
    answers: int = 0
    samples: int = 0  # sum of the batch sizes in the answers


class Generator:
    """All workers of this process, as `load_generators` asks for. `run` returns when standard input ends."""

    def __init__(self, config: argparse.Namespace) -> None:
        self._config = config
        self._random = random.Random(f"{config.seed} {config.first}")
        self._poll = select.epoll()
        self._workers: dict[int, Worker] = {}  # by file descriptor
        self._rounds: dict[tuple[str, int], _Round] = {}
        self._due: list[tuple[float, int]] = []  # when each worker reports, where computing takes time
        self._errors: Counter[str] = Counter()

    def run(self) -> None:
        """Join all jobs, then report again and again until standard input ends."""
        address = Address(*self._config.manager)
        workers = [
            Worker(job, number, address)
            for job in self._config.jobs
            for number in range(self._config.first, self._config.first + self._config.count)
        ]
        self._speeds = {worker: self._random.uniform(32, 128) for worker in workers}  # samples per second
        self._heartbeat = join(workers, self._config.workers)
        say(joined=len(workers))
        sys.stdin.readline()  # until all generators are there
        self._poll.register(sys.stdin, select.EPOLLIN)
        for worker in workers:
            descriptor = worker.connection.fileno()
            self._workers[descriptor] = worker
            self._poll.register(descriptor, select.EPOLLIN)
            self._report(worker, time.monotonic())
        beating = 0.0  # number of heartbeats that are due, spread evenly over time
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

    def _turn(self) -> bool:
        """Handle answers that have come and reports that are due; return False at the end of input."""
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

    def _read(self, worker: Worker) -> None:
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

    def _beat(self, worker: Worker) -> None:
        """Send a worker's heartbeat, independent of its reports, as a real worker's thread does."""
        if worker.connection.fileno() >= 0:
            try:
                worker.connection.sendall(worker.heartbeat)
            except OSError as error:
                self._fail(worker, error)

    def _take(self, worker: Worker, message: bytes) -> None:
        done = worker.iteration
        if not worker.take(message):
            if codec.read_header(message)[0].method == "heartbeat":
                answered(message, "heartbeat")
                return
            answer = answered(message, "report")
            raise ProtocolError(f"report of iteration {done} was answered with {answer}")
        now = time.monotonic()
        progress = self._rounds[worker.job, done]
        progress.answers += 1
        progress.samples += worker.count
        if progress.answers == self._config.count:
            del self._rounds[worker.job, done]
            say(round=(worker.job, done, progress.sent, now, progress.samples))
        self._report(worker, now)

    def _report(self, worker: Worker, now: float) -> None:
        """Report the present iteration once its time has passed."""
        if self._config.compute:
            seconds = self._config.compute * self._random.gauss(1, _NOISE)
            heapq.heappush(self._due, (now + seconds, worker.connection.fileno()))
        else:
            self._send(worker)

    def _send(self, worker: Worker) -> None:
        seconds = max(1e-6, worker.count / self._speeds[worker] * self._random.gauss(1, _NOISE))
        frame = worker.report(seconds)
        progress = self._rounds.setdefault((worker.job, worker.iteration), _Round())
        progress.sent = time.monotonic()
        try:
            worker.connection.sendall(frame)
        except OSError as error:
            self._fail(worker, error)

    def _fail(self, worker: Worker, error: Exception) -> None:
        """Print a worker's error, and let it take no further part."""
        self._errors[f"{type(error).__name__}: {error}"] += 1
        say(error=f"{worker.identity.job} {worker.identity.worker}: {error}")
        del self._workers[worker.connection.fileno()]
        worker.connection.close()


def say(**what: Any) -> None:
    """Print a JSON line for the process that started this one."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        Generator(read_options()).run()
    except (EvenpaceError, OSError) as error:
        say(failed=f"{type(error).__name__}: {error}")
        sys.exit(1)
