"""One job, member and connection more than a manager allows: each must be refused, with the reason."""

import contextlib
import time
import uuid
from collections.abc import Callable
from typing import Any

import idl
from idl.errors import EvenpaceError, InvalidRequestError
from lab.bench.connected_workers import SAMPLES_PER_WORKER
from rpc.address import Address
from rpc.client import Client

_wire = idl.batchsize_manager

SPARE_CONNECTIONS = 16  # connections that the manager allows beside the workers'
_SECONDS = 30.0  # seconds for one answer


Refusal = dict[str, str | None]
"""What was tried, in words, the kind of the error that it was refused with, if it was, and the message."""


def try_limits(address: Address, job: str, workers: int) -> list[Refusal]:
    """Exceed each limit of a manager whose jobs, members and connections are all that it allows."""
    return [
        _tried("a job too many", lambda: _join(address, f"{job}-too-many", workers)),
        _tried("a member too many", lambda: _join(address, job, workers)),
        _tried("a connection too many", lambda: _connect(address)),
        _tried("the same number of connections again", lambda: _connect(address)),
    ]


def _tried(what: str, action: Callable[[], None]) -> Refusal:
    try:
        action()
    except EvenpaceError as error:
        return {"what": what, "error": type(error).__name__, "message": str(error)}
    return {"what": what, "error": None, "message": "it was let in"}


def _join(address: Address, job: str, workers: int) -> None:
    identity = idl.common.Identity(job, "one-too-many", uuid.uuid4().hex)
    spec = _wire.JobSpec(10**9, SAMPLES_PER_WORKER * workers, 0, False, True)
    request = _wire.JoinRequest(identity=identity, job=spec, bounds=_wire.Bounds(1, 10**6, 1))
    with contextlib.closing(Client(_wire.BatchSizeManager, address, "manager")) as client:
        _call_once(client, "join", request)


def _connect(address: Address) -> None:
    """Open connections, each with a call that is answered, until one is refused."""
    with contextlib.ExitStack() as closed:
        for _ in range(SPARE_CONNECTIONS + 1):
            client = Client(_wire.BatchSizeManager, address, "manager")
            closed.callback(client.close)
            with contextlib.suppress(
                InvalidRequestError
            ):  # there is no such job: the answer of who was let in
                _call_once(client, "history", _wire.HistoryRequest("no-such-job", 0, 1))


def _call_once(client: Client, method: str, request: Any) -> None:
    """Call a method, without `Client.call`'s further attempts after a refusal for the moment."""
    deadline = time.monotonic() + _SECONDS
    client.send(method, request, deadline=deadline)
    client.receive(deadline=deadline)
