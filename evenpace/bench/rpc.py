"""Barrier rounds of many workers, against the manager and against a thread for each worker."""

import json
import random
import resource
import select
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from thriftpy2.thrift import TMessageType

import idl
from evenpace import report
from evenpace.bench.processes import server
from rpc import codec
from rpc.address import Address
from rpc.errors import ProtocolError

_WARM_UP = 5  # rounds

_wire = idl.batchsize_manager


def run(workers: int, rounds: int, json_path: Path | None) -> dict[str, Any]:
    """Measure both servers, print the figures, and write them.

    Args:
        workers: Connections, each a worker's.
        rounds: Rounds that count.
        json_path: Where to.
    """
    console = Console()
    _allow_files(workers + 100)
    with server("evenpace", "manager", "--listen", "127.0.0.1:0", "--workers", str(workers)) as address:
        ours = _measure(address, workers, rounds, "evenpace")
    with server("evenpace.bench.threaded_manager", str(workers)) as address:
        threaded = _measure(address, workers, rounds, "TThreadedServer")
    p50, p99 = np.percentile(ours, [50, 99])
    threaded_p50 = statistics.median(threaded)
    figures = {
        "workers": workers,
        "rounds": rounds,
        "round_ms_p50": p50 * 1e3,
        "round_ms_p99": p99 * 1e3,
        "threaded_round_ms_p50": threaded_p50 * 1e3,
        "ratio": threaded_p50 / p50,
    }
    table = Table(title=f"A barrier round of {workers} workers, {rounds} rounds", title_justify="left")
    for column in ("server", "median ms", "99% ms"):
        table.add_column(column, justify="left" if column == "server" else "right")
    table.add_row("evenpace manager", f"{p50 * 1e3:.1f}", f"{p99 * 1e3:.1f}")
    table.add_row(
        "thriftpy2 TThreadedServer", f"{threaded_p50 * 1e3:.1f}", f"{np.percentile(threaded, 99) * 1e3:.1f}"
    )
    console.print(table)
    console.print(f"The threaded server takes {figures['ratio']:.2f} times as long.")
    if json_path is not None:
        report.write_json(figures, json_path)
    else:
        console.print_json(json.dumps(figures))
    return figures


def _measure(address: Address, workers: int, rounds: int, label: str) -> list[float]:
    """Seconds of each round: from the first report sent to the last answer received."""
    identities = [idl.common.Identity("bench", f"worker-{i}", f"{i:032x}") for i in range(workers)]
    random_speeds = random.Random(1)
    times = [random_speeds.uniform(0.5, 2.0) for _ in identities]
    spec = _wire.JobSpec(
        dataset_size=10**9, total_batch_size=64 * workers, seed=0, shuffle=False, drop_last=True
    )
    bounds = _wire.Bounds(minimum=1, maximum=10**6, granularity=1)
    joins = [
        _frame("join", -1, _wire.JoinRequest(identity=identity, job=spec, bounds=bounds))
        for identity in identities
    ]
    connections = {}
    poll = select.epoll()
    for _ in identities:
        connection = socket.create_connection(address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections[connection.fileno()] = connection
        poll.register(connection, select.EPOLLIN)
    try:
        _round(poll, connections, joins, -1)
        seconds = []
        for number in track(range(_WARM_UP + rounds), description=label):
            frames = [
                _frame(
                    "report",
                    number,
                    _wire.ReportRequest(
                        identity=identity,
                        iteration=number,
                        batch_processing_time=taken,
                        waiting_time=0.0,
                        cpu_usage=0.5,
                        memory_usage=0.5,
                    ),
                )
                for identity, taken in zip(identities, times, strict=True)
            ]
            began = time.perf_counter()
            answers = _round(poll, connections, frames, number)
            seconds.append(time.perf_counter() - began)
            _check(answers, number, 64 * workers)
        return seconds[_WARM_UP:]
    finally:
        for connection in connections.values():
            connection.close()


def _frame(method: str, iteration: int, request: Any) -> bytes:
    arguments = getattr(_wire.BatchSizeManager, f"{method}_args")(request)
    return codec.frame(codec.encode(codec.Header(method, TMessageType.CALL, iteration + 1), arguments))


def _round(
    poll: select.epoll, connections: dict[int, socket.socket], frames: list[bytes], number: int
) -> list[bytes]:
    """Send everybody's frame, then read everybody's answer."""
    for connection, frame in zip(connections.values(), frames, strict=True):
        connection.sendall(frame)
    answers: list[bytes] = []
    partial: dict[int, bytes] = {}
    while len(answers) < len(connections):
        for descriptor, _ in poll.poll(60):
            data = partial.pop(descriptor, b"") + connections[descriptor].recv(4096)
            if len(data) >= 4 and len(data) == 4 + codec.LENGTH.unpack_from(data)[0]:
                answers.append(data[4:])
            elif data:
                partial[descriptor] = data
            else:
                raise ProtocolError(f"round {number}: the server closed a connection")
    return answers


def _check(answers: list[bytes], number: int, total: int) -> None:
    """The benchmark is worth nothing unless the answers are right."""
    count = 0
    for answer in answers:
        result = codec.decode(answer, _wire.BatchSizeManager.report_result)
        codec.raise_declared(result)
        if result.success.assignment.iteration != number + 1:
            raise ProtocolError(f"round {number}: an answer for {result.success.assignment}")
        count += result.success.assignment.count
    if count != total:
        raise ProtocolError(f"round {number}: the counts sum to {count}, not {total}")


def _allow_files(count: int) -> None:
    """Raise this process's, and so the servers', limit of open files if need be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
