"""Thrift messages made by hand, right and wrong, for tests to send."""

import math
import struct
from typing import Any

from thriftpy2.thrift import TApplicationException, TMessageType

import idl
from idl.errors import ProtocolError
from rpc import codec
from tests.services import Raw, ShardWorker

_manager = idl.batchsize_manager
_ps = idl.parameter_server

BOOL, DOUBLE, I32, I64, STRING, STRUCT, MAP, LIST = 2, 4, 8, 10, 11, 12, 13, 15
STOP = b"\0"
NAN, INF = math.nan, math.inf
LARGE = 300 * 1024 // 4  # elements; a gradient of more than one piece


def field(number: int, kind: int, value: bytes) -> bytes:
    """A struct's field."""
    return struct.pack(">bh", kind, number) + value


def i64(value: int) -> bytes:
    """An i64's bytes."""
    return struct.pack(">q", value)


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A string; `length` is what its length word claims."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">i", len(data) if length is None else length) + data


def message(method: str | bytes, body: bytes, kind: int = TMessageType.CALL, sequence_id: int = 1) -> bytes:
    """A frame with a message; `body` has the arguments' fields and the stop byte."""
    head = struct.pack(">HH", 0x8001, kind) + text(method) + struct.pack(">i", sequence_id)
    return codec.frame(head + body)


def request(*fields: bytes) -> bytes:
    """The arguments of a call whose first is a struct with these fields."""
    return field(1, STRUCT, b"".join(fields) + STOP) + STOP


def identity_field(identity: Any) -> bytes:
    """Field 1 of all requests."""
    names = (identity.job, identity.worker, identity.incarnation)
    return field(1, STRUCT, b"".join(field(i, STRING, text(n)) for i, n in enumerate(names, 1)) + STOP)


def service_of(method: str) -> Any:
    """The Thrift service that has the method."""
    services = (_manager.BatchSizeManager, _ps.ParameterServer)
    return next(service for service in services if method in service.thrift_services)


def framed(method: str, argument: Any, bulk: Any = None, sequence_id: int = 1) -> bytes:
    """A frame as every client writes it."""
    arguments = getattr(service_of(method), f"{method}_args")(argument)
    if bulk is not None:
        codec.set_bulk_field(arguments, bytes(bulk))
    return codec.frame(codec.encode(codec.Header(method, TMessageType.CALL, sequence_id), arguments))


def answer(raw: Raw) -> tuple[codec.Header, Any]:
    """The header and the result of the next answer; raises what it carries."""
    data = raw.read_frame()
    assert data is not None, "the connection was closed without an answer"
    header, _ = codec.scan(data, len(data))
    if header.type == TMessageType.EXCEPTION:
        raise ProtocolError(codec.decode(data, TApplicationException).message)
    result = codec.decode(data, getattr(service_of(header.method), f"{header.method}_result"))
    codec.raise_declared(result)
    return header, result.success


def pull_frame(worker: ShardWorker, version: int, sequence_id: int = 1) -> bytes:
    """A call of pull in the worker's job."""
    return framed("pull", _ps.PullRequest(worker.identity, version), sequence_id=sequence_id)
