"""The live page as a process, those who look at it, and workers that are uneven enough to be worth a look."""

import contextlib
import http.client
import json
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import idl
from idl.translation import wire_norms
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.processes import Process
from tests.evenpace.overview.noisy_gradients import drawn_norms
from tests.services import ANYWHERE

_wire = idl.batchsize_manager
_PAGE = "page on "
# Of transfers, as shares of the batch processing time: one half is hidden, and computing is the bottleneck.
_TIMES = {
    "communication_time": 0.2,
    "backward_time": 0.5,
    "first_bucket_time": 0.1,
    "other_buckets_time": 0.2,
    "last_bucket_time": 0.1,
}


@dataclass(frozen=True)
class Page:
    """A page that runs."""

    url: str  # its address, with a slash at the end
    popen: "subprocess.Popen[bytes]"  # the process that was started: a manager, or the page itself
    manager: Address | None  # the manager's address; None for the page of a cluster
    log: Path  # what the process logs
    context: ssl.SSLContext | None = None  # for HTTPS

    @property
    def host(self) -> str:
        """Return the `Host` header that a browser sends."""
        return urlsplit(self.url).netloc

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        if self.context is not None:
            return http.client.HTTPSConnection(self.host, timeout=120, context=self.context)
        return http.client.HTTPConnection(self.host, timeout=120)

    def ask(
        self, path: str, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        """Status, value and headers of one answer; text where it is not JSON."""
        with contextlib.closing(self.connect()) as connection:
            connection.connect()
            # In one piece: who is refused at its first half must not meet a reset connection with the second.
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            connection.request(method, path, body, headers or {})
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
            answer = connection.getresponse()
            data = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(data) if is_json else data.decode(), answer.headers

    def get(self, path: str) -> Any:
        """Return the answer to a request, which must succeed."""
        status, value, _ = self.ask(path)
        assert status == 200, value
        return value

    def shows(self, job: str, iterations: int = 0) -> Any:
        """Return the page's data of a job; None while it has no such job, or fewer iterations of it."""
        status, value, _ = self.ask(f"/api/jobs/{job}")
        return value if status == 200 and value["figures"]["iterations"] >= iterations else None

    def change(self, job: str, change: Any, token: str | None = None, **headers: str) -> tuple[int, Any]:
        """Ask for a change as the page's script does, until the manager has answered; status and value."""
        own = {"Content-Type": "application/json", "X-Evenpace": "1"} | headers
        if token is not None:
            own["Authorization"] = f"Bearer {token}"
        deadline = time.monotonic() + 240
        while True:
            status, value, _ = self.ask(f"/api/jobs/{job}/control", "POST", json.dumps(change), own)
            if status not in (502, 503) or time.monotonic() > deadline:
                return status, value

    @contextlib.contextmanager
    def events(self, job: str | None = None) -> Iterator[Iterator[tuple[str, Any]]]:
        """Follow the page: names and values of its events."""
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", "/api/stream" if job is None else f"/api/stream?job={job}")
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers.get_content_type() == "text/event-stream"
            yield _events(answer)


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    while line := answer.readline().decode():
        field, _, value = line.rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


@contextlib.contextmanager
def managed_page(
    folder: Path, *options: str, http: str = str(ANYWHERE), context: ssl.SSLContext | None = None
) -> Iterator[Page]:
    """A real `evenpace manager` with its page."""
    arguments = ("manager", "--listen", str(ANYWHERE), "--http", http, *options)
    with _started(folder / "manager.log", *arguments) as process:
        manager = process.address
        yield Page(page_address(process), process.popen, manager, process.log, context)


@contextlib.contextmanager
def page_of(folder: Path, manager: Address, *options: str) -> Iterator[Page]:
    """A real `evenpace dashboard` of a manager that runs."""
    arguments = ("dashboard", "--manager", str(manager), "--http", str(ANYWHERE), *options)
    with _started(folder / "page.log", *arguments) as process:
        yield Page(page_address(process), process.popen, manager, process.log)


def _started(log: Path, *arguments: str) -> Process:
    return Process(arguments[0], [sys.executable, "-m", "evenpace", *arguments], log, listens=True)


def page_address(process: Process) -> str:
    """Return the address of its page, from its output."""
    line = process.popen.stdout.readline().decode()
    assert line.startswith(_PAGE), line + process.log.read_text()
    return line.removeprefix(_PAGE).strip()


class Uneven:
    """The workers of a job, each with a speed of its own; they go on until the end of `with`.

    What they report follows from their speeds; each takes a hundredth of that time.

    Args:
        speeds: Samples per second of each worker, worker-0 first.
        credentials: Where the manager asks for them.
        micro_batch: Samples of a micro-batch, of which each computes up to 4 at once; None for a job without.
        noise_scale: The scale of the gradient noise that the reports' norms have; None for reports without.
        transfers: Whether they measure their transfers.
    """

    BATCH = 64  # samples for each worker, on average

    def __init__(
        self,
        manager: Address,
        job: str = "uneven",
        speeds: Sequence[float] = (400, 300, 200, 50),
        credentials: Credentials | None = None,
        micro_batch: int | None = None,
        noise_scale: float | None = None,
        transfers: bool = True,
    ) -> None:
        self.job = job
        self._transfers = transfers
        self._micro_batch = micro_batch
        self._noise_scale = noise_scale
        self.done: list[int] = []  # iterations that worker-0 was answered for, each once and in order
        self._manager = manager
        self._speeds = speeds
        self._credentials = credentials
        self._over = threading.Event()
        self._errors: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(number,), daemon=True)
            for number in range(len(speeds))
        ]

    def __enter__(self) -> "Uneven":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Have all workers leave; raises what any of them raised."""
        self._over.set()
        for thread in self._threads:
            thread.join(240)
            assert not thread.is_alive()
        if self._errors:
            raise self._errors[0]

    def _guarded(self, number: int) -> None:
        try:
            self._work(number)
        except Exception as error:  # noqa: BLE001 - raised again by `end`
            self._errors.append(error)
            self._over.set()

    def _work(self, number: int) -> None:
        identity = idl.common.Identity(self.job, f"worker-{number}", uuid.uuid4().hex)
        client = Client(
            _wire.BatchSizeManager, self._manager, "manager", call_timeout=240, credentials=self._credentials
        )
        cut = self._micro_batch
        spec = _wire.JobSpec(10**6, self.BATCH * len(self._speeds), 1, False, True, cut)
        bounds = _wire.Bounds(1, 10**6, 1, None if cut is None else 4)
        noise = random.Random(number)
        halves = [spec.total_batch_size // 2] * 2
        reply = client.call("join", _wire.JoinRequest(identity, spec, bounds))
        while not self._over.is_set() and reply.released is None:
            given = reply.assignment
            seconds = max(1e-4, given.count / self._speeds[number] * noise.gauss(1, 0.02))
            self._over.wait(seconds / 100)
            norms = self._noise_scale and drawn_norms(given.iteration, halves, self._noise_scale)
            report = _wire.ReportRequest(
                identity,
                given.iteration,
                seconds,
                0.001,
                0.1,
                0.5,
                norms=wire_norms(norms or None),
                **{name: share * seconds for name, share in _TIMES.items() if self._transfers},
            )
            reply = client.call("report", report)
            if number == 0:
                self.done.append(given.iteration)
        if reply.released is None:
            client.call("leave", _wire.LeaveRequest(identity))
        client.close()
