"""Time push and pull of the parameter server.

They are measured beside those of bare sockets.

Example:
  evenpace lab bench ps --mib 100 --json ps.json
"""

import contextlib
import socket
import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import Console
from rich.progress import track

import idl
from evenpace.local.cluster import service
from evenpace.local.terminal import make_table
from idl.settings import Checked, Setting
from lab.bench.loopback_certificates import for_loopback
from lab.bench.plain_transfers import PULL, PUSH
from lab.fields import Mib, Repeats
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials

_wire = idl.parameter_server
_TIMEOUT = 120  # seconds for one call

Step = Callable[[], Any]


@dataclass(frozen=True)
class TransfersConfig(Checked):
    """What is sent, and how often (InvalidRequestError: a value is out of its range)."""

    mib: Mib = 100
    repeats: Repeats = 9  # after one round that does not count
    tls: Annotated[bool, Setting("Measure with TLS, too.")] = False


def run(config: TransfersConfig, console: Console) -> dict[str, Any]:
    """Measure all of them in turns, so that other load falls on them alike; print and return the GB/s."""
    mib, repeats = config.mib, config.repeats
    nbytes = mib * 2**20
    gradient, parameters = memoryview(bytes(nbytes)), memoryview(bytearray(nbytes))
    with (
        contextlib.ExitStack() as stack,
        service("ps") as ours,
        service(str(nbytes), module="lab.bench.plain_transfers") as bare,
    ):
        steps = {
            "": _evenpace(ours.address, gradient, parameters),
            "raw_": _sockets(bare.address, gradient, parameters),
        }
        if config.tls:
            credentials, options = stack.enter_context(for_loopback())
            secure = stack.enter_context(service("ps", *options)).address
            steps["tls_"] = _evenpace(secure, gradient, parameters, credentials)
        seconds: dict[str, list[float]] = {}
        for repeat in track(range(repeats + 1), description=f"{mib} MiB", console=console):
            for who, (push, pull) in steps.items():
                for what, step in (("push", push), ("pull", pull)):
                    began = time.perf_counter()
                    step()
                    if repeat:
                        seconds.setdefault(f"{who}{what}_gb_s", []).append(time.perf_counter() - began)
    figures: dict[str, Any] = {"mib": mib}
    figures |= {key: nbytes / statistics.median(taken) / 1e9 for key, taken in seconds.items()}
    table = make_table(f"{mib} MiB over loopback, medians of {repeats}", "", "push GB/s", "pull GB/s")
    names = {"": "evenpace", "raw_": "bare sockets", "tls_": "evenpace, TLS"}
    for who in steps:
        speeds = (f"{figures[f'{who}{what}_gb_s']:.2f}" for what in ("push", "pull"))
        table.add_row(names[who], *speeds)
    console.print(table)
    return figures


def _evenpace(
    address: Address, gradient: memoryview, parameters: memoryview, credentials: Credentials | None = None
) -> tuple[Step, Step]:
    client = Client(
        _wire.ParameterServer,
        address,
        "parameter server",
        call_timeout=_TIMEOUT,
        credentials=credentials,
    )
    identity = idl.common.Identity("bench/0", "worker", uuid.uuid4().hex)
    group = _wire.ParameterGroup(elements=gradient.nbytes // 4, options={"lr": 0.1})
    client.call(
        "open", _wire.OpenRequest(identity=identity, dtype="float32", optimizer="sgd", groups=[group])
    )
    client.call("initialise", _wire.InitialiseRequest(identity=identity, version=0), bulk=gradient)
    pushed = 0

    def push() -> None:
        # Slices of a batch that never fills: what is timed is the push and the add, not the step.
        nonlocal pushed
        assignment = idl.common.Assignment(0, 0, pushed, 1, 10**9)
        client.call("push", _wire.PushRequest(identity=identity, assignment=assignment), bulk=gradient)
        pushed += 1

    def pull() -> None:
        client.call("pull", _wire.PullRequest(identity=identity, version=-1), into=parameters)

    return push, pull


def _sockets(address: Address, gradient: memoryview, parameters: memoryview) -> tuple[Step, Step]:
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def push() -> None:
        connection.sendall(PUSH)
        connection.sendall(gradient)
        connection.recv(1)

    def pull() -> None:
        connection.sendall(PULL)
        filled = 0
        while filled < parameters.nbytes:
            filled += connection.recv_into(parameters[filled:])

    return push, pull
