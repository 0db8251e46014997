"""Bad input over real sockets: one clear error for its sender, and no effect on anybody else."""

import contextlib
import itertools
import math
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thriftpy2.thrift import TApplicationException, TMessageType

import idl
from rpc import codec
from rpc.address import Address
from rpc.client import Client
from rpc.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    NotMemberError,
    ProtocolError,
    UnavailableError,
)
from rpc.server import ServerLimits
from tests.services import (
    ANYWHERE,
    MemberWorker,
    Raw,
    ShardWorker,
    ends_with,
    join_request,
    manager_process,
    manager_service,
    open_request,
    serving,
    shard_service,
    signalled_process,
)

_manager = idl.batchsize_manager
_ps = idl.parameter_server
Identity, Assignment = idl.common.Identity, idl.common.Assignment

BOOL, DOUBLE, I32, I64, STRING, STRUCT, MAP, LIST = 2, 4, 8, 10, 11, 12, 13, 15
STOP = b"\0"
NAN, INF = math.nan, math.inf
LARGE = 300 * 1024 // 4  # elements; a gradient of more than one piece


# -- messages by hand


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


# -- services and workers that must come to no harm


@pytest.fixture(scope="module")
def manager() -> Iterator[Address]:
    """A manager for all tests that can share one."""
    with serving(manager_service(reconnect_grace=30.0)) as address:
        yield address


@pytest.fixture(scope="module")
def shard() -> Iterator[Address]:
    """A shard for all tests that can share one."""
    with serving(shard_service()) as address:
        yield address


@pytest.fixture
def member(manager) -> Iterator[MemberWorker]:
    """Has reported an iteration; the tests see whether it can go on."""
    worker = MemberWorker(manager)
    worker.iterate()
    yield worker
    worker.close()


@pytest.fixture
def pusher(shard) -> Iterator[ShardWorker]:
    """Has pushed an iteration; the tests see whether it can go on."""
    worker = ShardWorker(shard)
    worker.iterate()
    yield worker
    worker.close()


# -- requests that are no good: a declared exception, and the connection goes on


def bad_manager_requests(me: Any) -> dict[str, tuple[str, Any, type, str]]:
    """By name: the method, its request, the error, and what its message says; `me` has reported once."""
    other = Identity("new job", "w", "i")

    def report(identity: Any = me, **changes: Any) -> Any:
        values = {"iteration": 1, "batch_processing_time": 0.5, "waiting_time": 0.0, "cpu_usage": 0.5}
        return _manager.ReportRequest(identity, **{**values, "memory_usage": 0.5, **changes})

    cases: dict[str, tuple[str, Any, type, str]] = {
        "no request": ("report", None, InvalidRequestError, "argument 1, request, is missing"),
        "no identity": ("join", join_request(None), InvalidRequestError, "identity is missing"),
        "empty name": ("join", join_request(Identity("", "w", "i")), InvalidRequestError, "job ''"),
        "control character": ("join", join_request(Identity("j", "a\nb", "i")), InvalidRequestError, "a.nb"),
        "long name": ("join", join_request(Identity("j" * 201, "w", "i")), InvalidRequestError, "1 to 200"),
        "no spec": ("join", _manager.JoinRequest(other), InvalidRequestError, "dataset_size is missing"),
        "no field": ("join", join_request(other, seed=None), InvalidRequestError, "seed is missing"),
        "other incarnation": (
            "report",
            report(Identity(me.job, me.worker, "other")),
            NotMemberError,
            "incarnation 'other', is not a member",
        ),
        "second of a name": (
            "join",
            join_request(Identity(me.job, me.worker, "other")),
            InvalidRequestError,
            "is a member already",
        ),
        "other spec": (
            "join",
            join_request(Identity(me.job, "another", "i"), seed=99),
            InvalidRequestError,
            "runs with",
        ),
        "unknown job": ("report", report(other), NotMemberError, "no job 'new job'"),
        "iteration to come": ("report", report(iteration=2), InvalidRequestError, "1 is next"),
        "leave another": ("leave", _manager.LeaveRequest(other), NotMemberError, "no job"),
        "no history": ("history", _manager.HistoryRequest("?", 0, 1), InvalidRequestError, "no job '?'"),
    }
    for name, value in itertools.product(
        ("dataset_size", "total_batch_size", "minimum", "granularity"), (-(2**63), -1, 0, 2**63 - 1)
    ):
        pattern = "granularity|minimum" if name in ("minimum", "granularity") else name
        cases[f"{name} {value}"] = (
            "join",
            join_request(other, **{name: value, **({"maximum": 2**63 - 1} if value > 0 else {})}),
            InvalidRequestError,
            pattern,
        )
    for name, values in {
        "batch_processing_time": (NAN, INF, -INF, -1.0, 0.0, None),
        "waiting_time": (NAN, INF, -1.0),
        "cpu_usage": (NAN, -0.5, 1.5),
        "memory_usage": (INF, 2.0),
        "iteration": (-1, -(2**63), 2**63 - 1),
    }.items():
        for value in values:
            cases[f"{name} {value}"] = ("report", report(**{name: value}), InvalidRequestError, name)
    for limit in (-1, 0, 1001, 2**63 - 1):
        cases[f"limit {limit}"] = (
            "history",
            _manager.HistoryRequest(me.job, 0, limit),
            InvalidRequestError,
            "limit",
        )
    return cases


def bad_shard_requests(me: Any) -> dict[str, tuple[str, Any, Any, type, str]]:
    """By name: the method, request, gradient, error, and what it says; `me` has 1000 floats at version 1."""
    other = Identity("new job", "w", "i")
    group = _ps.ParameterGroup

    def opening(*groups: Any, **changes: Any) -> Any:
        return open_request(other, 10, **({"groups": list(groups)} if groups else {}), **changes)

    def push(identity: Any = me, groups: Any = None, **changes: Any) -> Any:
        values = {"iteration": 1, "epoch": 0, "start": 0, "count": 8, "total": 8}
        return _ps.PushRequest(identity, Assignment(**{**values, **changes}), groups)

    right, lr = bytes(4000), {"lr": 1.0}
    cases: dict[str, tuple[str, Any, Any, type, str]] = {
        "no request": ("pull", None, None, InvalidRequestError, "argument 1, request, is missing"),
        "no identity": ("open", open_request(None, 10), None, InvalidRequestError, "identity is missing"),
        "dtype": ("open", opening(dtype="int8"), None, InvalidRequestError, "dtype 'int8'"),
        "optimizer": ("open", opening(optimizer="lion"), None, InvalidRequestError, "optimizer 'lion'"),
        "no groups": ("open", opening(groups=[]), None, InvalidRequestError, "groups"),
        "no elements": ("open", opening(group(0, lr)), None, InvalidRequestError, "at least one element"),
        "negative": ("open", opening(group(-5, lr)), None, InvalidRequestError, "elements -5"),
        "huge": (
            "open",
            opening(group(2**62, lr)),
            None,
            InvalidRequestError,
            "elements 4611686018427387904",
        ),
        "more than fits": ("open", opening(group(2**40, lr)), None, InvalidRequestError, "may hold"),
        "no lr": ("open", opening(group(1, {})), None, InvalidRequestError, "lr is missing"),
        "NaN lr": ("open", opening(group(1, {"lr": NAN})), None, InvalidRequestError, "option lr nan"),
        "option": ("open", opening(group(1, {"lr": 1.0, "x": 1.0})), None, InvalidRequestError, "option 'x'"),
        "other model": ("open", open_request(me, 10), None, InvalidRequestError, "is it the same model"),
        "unknown job": ("pull", _ps.PullRequest(other, 0), None, NotMemberError, "has not opened"),
        "version": ("pull", _ps.PullRequest(me, -2), None, InvalidRequestError, "version -2"),
        "push, unknown job": ("push", push(other), right, NotMemberError, "has not opened"),
        "push, large, unknown job": ("push", push(other), bytes(2**19), NotMemberError, "has not opened"),
        "push, no request": ("push", None, right, InvalidRequestError, "request, is missing"),
        "push, no assignment": ("push", _ps.PushRequest(me), right, InvalidRequestError, "assignment"),
        "push, no gradient": ("push", push(), None, InvalidRequestError, "0 bytes, but the shard's 1000"),
        "push, short": ("push", push(), right[1:], InvalidRequestError, "3999 bytes"),
        "push, long": ("push", push(), bytes(2**19), InvalidRequestError, "524288 bytes"),
        "push, past": ("push", push(iteration=0, count=3), right, InvalidRequestError, "is at 1"),
        "push, future": ("push", push(iteration=2), right, InvalidRequestError, "is at 1"),
        "push, options": ("push", push(groups=[group(7, lr)]), right, InvalidRequestError, "the job has"),
        "push, bad option": (
            "push",
            push(groups=[group(1000, {})]),
            right,
            InvalidRequestError,
            "lr is missing",
        ),
        "initialise, version": (
            "initialise",
            _ps.InitialiseRequest(me, -1),
            right,
            InvalidRequestError,
            "-1",
        ),
        "forfeit": ("forfeit", _ps.ForfeitRequest(me, 1, -1, 2, 4), None, InvalidRequestError, "start -1"),
    }
    for name, value in itertools.product(("iteration", "start", "count", "total"), (-(2**63), -1, 2**63 - 1)):
        cases[f"push, {name} {value}"] = ("push", push(**{name: value}), right, InvalidRequestError, name)
    for changes in ({"count": 0}, {"count": 9}, {"total": 0}, {"start": None}):
        cases[f"push, {changes}"] = ("push", push(**changes), right, InvalidRequestError, next(iter(changes)))
    return cases


SOMEBODY = Identity("j", "w", "i")


@pytest.mark.parametrize("name", bad_manager_requests(SOMEBODY))
def test_manager_refuses_bad_request(manager, member, name):
    """The manager says which value is no good, goes on with the connection, and changes nothing."""
    method, argument, error, pattern = bad_manager_requests(member.identity)[name]
    with Raw(manager) as raw:
        raw.send(framed(method, argument))
        with pytest.raises(error, match=pattern):
            answer(raw)
        raw.send(framed("history", _manager.HistoryRequest(member.identity.job, 0, 10), sequence_id=2))
        header, history = answer(raw)
        assert (header.sequence_id, history.members) == (2, ["good"])
    member.iterate()


@pytest.mark.parametrize("name", bad_shard_requests(SOMEBODY))
def test_shard_refuses_bad_request(shard, pusher, name):
    """A shard says which value is no good, reads the gradient away, and changes nothing."""
    method, argument, bulk, error, pattern = bad_shard_requests(pusher.identity)[name]
    with Raw(shard) as raw:
        raw.send(framed(method, argument, bulk))
        with pytest.raises(error, match=pattern):
            answer(raw)
        raw.send(pull_frame(pusher, -1, sequence_id=2))
        header, reply = answer(raw)
        assert (header.sequence_id, reply.version) == (2, 1)
        assert reply.parameters == pusher.expected.tobytes()
    pusher.iterate()


def wrongly_typed(me: Any) -> dict[str, tuple[bytes, str]]:
    """By name: a call of report or history with a field of another type than declared, and the error."""
    fields = {
        1: identity_field(me),
        2: field(2, I64, i64(1)),
        **{i: field(i, DOUBLE, struct.pack(">d", 0.5)) for i in (3, 4, 5, 6)},
    }

    def report(**changes: bytes) -> bytes:
        changed = {**fields, **{int(name[1:]): value for name, value in changes.items()}}
        return message("report", request(*changed.values()))

    deep_identity = field(1, STRUCT, field(1, I64, i64(1)) + STOP)
    bad_name = field(1, STRUCT, field(1, STRING, text(b"\xff\xfe")) + STOP)
    return {
        "request": (message("report", field(1, I64, i64(1)) + STOP), "request, is missing"),
        "identity": (report(_1=field(1, STRING, text("me"))), "identity is missing"),
        "job": (report(_1=deep_identity), "job is missing or not of its type"),
        "invalid UTF-8": (report(_1=bad_name), "job b'\\\\xff"),
        "iteration as string": (report(_2=field(2, STRING, text("1"))), "iteration is missing or not"),
        "iteration as double": (report(_2=field(2, DOUBLE, struct.pack(">d", 1.0))), "iteration is missing"),
        "iteration as i32": (report(_2=field(2, I32, struct.pack(">i", 1))), "iteration is missing"),
        "time as i64": (report(_3=field(3, I64, i64(1))), "batch_processing_time is missing"),
        "usage as list": (report(_5=field(5, LIST, struct.pack(">bi", DOUBLE, 0))), "cpu_usage is missing"),
    }


@pytest.mark.parametrize("name", wrongly_typed(SOMEBODY))
def test_field_of_another_type_is_refused(manager, member, name):
    """A field that does not have its declared type counts as missing, and the error says so."""
    data, pattern = wrongly_typed(member.identity)[name]
    with Raw(manager) as raw:
        raw.send(data)
        with pytest.raises(InvalidRequestError, match=pattern):
            answer(raw)
    member.iterate()


def test_extreme_times_leave_the_sum_exact():
    """Whatever times two workers claim, their counts sum to the batch."""
    with serving(manager_service(workers=2)) as address, Raw(address) as one, Raw(address) as two:
        names = [Identity("extreme", name, name) for name in "ab"]
        for raw, identity in zip((one, two), names, strict=True):
            raw.send(framed("join", join_request(identity)))
        for iteration, times in enumerate([(1e-9, 1.7e308), (1e-9, 1e-9), (1.7e308, 1.7e308), (1, 1)]):
            assignments = [answer(raw)[1].assignment for raw in (one, two)]
            assert [a.iteration for a in assignments] == [iteration, iteration]
            assert sum(a.count for a in assignments) == MemberWorker.BATCH
            assert all(a.count > 0 for a in assignments)
            for raw, identity, seconds in zip((one, two), names, times, strict=True):
                report = _manager.ReportRequest(identity, iteration, float(seconds), 1.7e308, 0.0, 1.0)
                raw.send(framed("report", report))


def test_huge_bounds_leave_the_sum_exact():
    """Workers that can take any batch size share the batch like any others."""
    with serving(manager_service(workers=2)) as address, Raw(address) as one, Raw(address) as two:
        for raw, name in ((one, "a"), (two, "b")):
            bounds = {"maximum": 2**63 - 1, "granularity": 2**48}
            raw.send(framed("join", join_request(Identity("huge", name, name), **bounds)))
        assignments = [answer(raw)[1].assignment for raw in (one, two)]
        assert sum(a.count for a in assignments) == MemberWorker.BATCH
        assert all(a.count >= 0 for a in assignments)


def test_unknown_method_is_answered(manager, member):
    """A method that the service lacks is answered with those that it has, and the connection goes on."""
    with Raw(manager) as raw:
        for method in ("pull", "", "x" * 256, "__class__"):
            raw.send(message(method, STOP))
            with pytest.raises(ProtocolError, match=r"BatchSizeManager has .*report"):
                answer(raw)
        raw.send(message("large", field(1, STRING, text("x" * 10_000)) + STOP))
        with pytest.raises(ProtocolError, match="no method 'large'"):
            answer(raw)
        raw.send(framed("history", _manager.HistoryRequest(member.identity.job, 0, 1)))
        assert answer(raw)[1].members == ["good"]
    member.iterate()


# -- bytes that are no message: an answer that says why, and the end of the connection

NESTED = field(1, STRUCT, b"") * 1000 + STOP * 1001
NOT_MESSAGES: dict[str, tuple[bytes, str]] = {
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "not a strict binary-protocol Thrift message"),
    "TLS": (bytes.fromhex("1603010200010001fc0303") + bytes(64), "not a strict binary-protocol"),
    "unframed": (message("report", STOP)[4:], "a frame of -"),
    "zeros": (bytes(64), "a frame of 0 bytes"),
    "negative length": (struct.pack(">i", -5) + b"hello", "a frame of -5 bytes"),
    "oversized": (struct.pack(">i", 2**31 - 1) + message("report", bytes(8192))[4:], "a frame of 2147483647"),
    "a little oversized": (message("report", bytes(2**20 + 1)), "1 to 1048576 are allowed"),
    "old protocol": (codec.frame(text("report") + b"\x01" + bytes(4) + STOP), "not a strict binary-protocol"),
    "reply": (message("report", STOP, TMessageType.REPLY), "only calls are expected"),
    "exception": (message("report", STOP, TMessageType.EXCEPTION), "only calls are expected"),
    "name not UTF-8": (message(b"\xff\xfe", STOP), "not UTF-8"),
    "long name": (message("x" * 257, STOP), "method name of 257 bytes"),
    "name of 2 GiB": (codec.frame(struct.pack(">HHi", 0x8001, 1, 2**31 - 1)), "method name of 2147483647"),
    "empty message": (codec.frame(b"\x80"), "cut off"),
    "no stop": (message("report", b""), "cut off"),
    "too much": (message("report", STOP + b"more"), "ends after"),
    "string of 2 GiB": (
        message("report", field(1, STRING, text("", 2**31 - 1)) + STOP),
        "a string of 2147483647",
    ),
    "negative string": (message("report", field(1, STRING, text("x", -1)) + STOP), "a string of -1"),
    "long list": (
        message("report", field(1, LIST, struct.pack(">bi", I64, 2**31 - 1)) + STOP),
        "2147483647 elem",
    ),
    "negative list": (
        message("report", field(1, LIST, struct.pack(">bi", I64, -1)) + STOP),
        "of -1 elements",
    ),
    "long list of strings": (
        message("report", field(1, LIST, struct.pack(">bi", STRING, 3) + text("", 2**30)) + STOP),
        "a string of 1073741824",
    ),
    "long map": (
        message("report", field(1, MAP, struct.pack(">bbi", STRING, I64, 2**31 - 1)) + STOP),
        "2147483647",
    ),
    "nested structs": (message("report", NESTED), "nested deeper"),
    "nested lists": (
        message("report", field(1, LIST, struct.pack(">bi", LIST, 1) * 1000) + STOP),
        "nested deeper",
    ),
    "unknown type": (message("report", field(1, 99, bytes(8)) + STOP), "unknown Thrift type 99"),
    "void": (message("report", field(1, 1, b"") + STOP), "unknown Thrift type 1"),
}


@pytest.mark.parametrize("name", NOT_MESSAGES)
def test_what_is_no_message_is_refused(manager, member, name):
    """Bytes that are no message of ours are answered with the reason, and the connection ends."""
    data, pattern = NOT_MESSAGES[name]
    with Raw(manager) as raw:
        raw.send(data)
        with pytest.raises(ProtocolError, match=pattern):
            answer(raw)
        assert raw.is_closed()
    member.iterate()


@pytest.mark.parametrize("name", NOT_MESSAGES)
def test_what_is_no_push_is_refused(shard, pusher, name):
    """The same holds for a method with a gradient."""
    data, pattern = NOT_MESSAGES[name]
    with Raw(shard) as raw:
        raw.send(data.replace(text("report"), text("push")) if "frame of" in pattern else data)
        with pytest.raises(ProtocolError):
            answer(raw)
        assert raw.is_closed()
    pusher.iterate()


def test_answers_before_a_bad_frame_still_come(manager, member):
    """Of calls in one segment, those before the bad one are answered."""
    good = framed("history", _manager.HistoryRequest(member.identity.job, 0, 1), sequence_id=7)
    with Raw(manager) as raw:
        raw.send(good + codec.frame(b"nonsense"))
        assert answer(raw)[0].sequence_id == 7
        with pytest.raises(ProtocolError, match="not a strict"):
            answer(raw)
        assert raw.is_closed()
    member.iterate()


@pytest.mark.parametrize("cut", [1, 4, 20, -1])
def test_connection_closed_within_a_frame(manager, member, cut):
    """A call that does not arrive whole has no effect."""
    data = framed("leave", _manager.LeaveRequest(member.identity))
    with Raw(manager) as raw:
        raw.send(data[:cut])
    member.iterate()


# -- framing that is unusual and right


def test_pipelined_calls_are_all_answered(shard, pusher):
    """Calls in one segment are answered one by one, large and small ones mixed."""
    calls = [pull_frame(pusher, -1, 1)]
    for start, sequence_id in ((0, 2), (4, 3)):
        calls.append(framed("push", pusher.push_request(start, 4), pusher.gradient(), sequence_id))
    pusher.stepped()
    calls += [pull_frame(pusher, 2, 4), pull_frame(pusher, 2, 5)]
    with Raw(shard) as raw:
        raw.send(b"".join(calls))
        answers = [answer(raw) for _ in calls]
    assert [header.sequence_id for header, _ in answers] == [1, 2, 3, 4, 5]
    assert answers[-1][1].parameters == answers[-2][1].parameters == pusher.expected.tobytes()
    pusher.iterate()


def test_frames_byte_by_byte(shard):
    """A call may arrive in any pieces, down to single bytes."""
    worker = ShardWorker(shard, elements=3)
    with Raw(shard) as raw:
        for byte in framed("push", worker.push_request(), worker.gradient()) + pull_frame(worker, 1, 2):
            raw.send(bytes([byte]))
        worker.stepped()
        assert answer(raw)[1].iteration == 0
        assert answer(raw)[1].parameters == worker.expected.tobytes()
    worker.iterate()
    worker.close()


@pytest.mark.parametrize("elements", [3, 1000, LARGE])
def test_frames_split_anywhere(shard, elements):
    """Wherever a push is split in two, and whatever follows it at once, the sum is exact."""
    worker = ShardWorker(shard, elements)
    size = len(framed("push", worker.push_request(), worker.gradient()))
    places = (1, 3, 4, 5, 60, size // 2, size - 2, size - 1, 4095, 4096, 4097, 4100, 4101, 2**18 + 77)
    with Raw(shard) as raw:
        for place in (place for place in places if place < size):
            data = framed("push", worker.push_request(), worker.gradient())
            data += pull_frame(worker, worker.version + 1)
            raw.send(data[:place])
            # Asked over another connection, so that the first part has been read before the second comes.
            worker.check()
            raw.send(data[place:])
            assert answer(raw)[1].iteration == worker.version
            worker.stepped()
            assert answer(raw)[1].parameters == worker.expected.tobytes()
    worker.close()


@pytest.mark.parametrize("envelope", [4096 - d for d in range(-8, 9)])
@pytest.mark.parametrize("elements", [1, LARGE])
def test_bulk_field_near_the_end_of_the_first_read(shard, elements, envelope):
    """A gradient is found wherever its field begins, also where what comes before it is long."""
    worker = ShardWorker(shard, elements)
    push = worker.push_request()
    plain = len(framed("push", push, b"")) - 4  # bytes, up to where the field would begin
    filler = field(77, STRING, text("x" * (envelope - plain - 7)))  # a field that the service does not know
    head = framed("push", push, b"")[4:]
    body = head[:-5].replace(field(1, STRUCT, b""), filler + field(1, STRUCT, b""), 1)
    gradient = worker.gradient().tobytes()
    with Raw(shard) as raw:
        raw.send(codec.frame(body + text(gradient) + STOP))
        assert answer(raw)[1].iteration == 0
    worker.stepped()
    worker.iterate()
    worker.close()


@pytest.mark.parametrize("groups", [1, 30, 50, 1000])
@pytest.mark.parametrize("per_group", [1, 40])
def test_push_with_options_of_many_groups(shard, groups, per_group):
    """A push may change the options of as many parameter groups as the job has."""
    worker = ShardWorker(shard, 1)
    worker.elements = groups * per_group
    worker.identity = Identity(f"groups-{groups}-{per_group}", "w", "i")
    options = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}
    layout = [_ps.ParameterGroup(per_group, options) for _ in range(groups)]
    worker.client.call("open", open_request(worker.identity, 0, groups=layout))
    worker.expected = np.zeros(worker.elements, dtype=np.float32)
    request = _ps.InitialiseRequest(worker.identity, 0)
    worker.client.call("initialise", request, bulk=worker.expected.data.cast("B"))
    push = worker.push_request()
    push.groups = [_ps.ParameterGroup(per_group, {**options, "lr": 0.5}) for _ in range(groups)]
    gradient = 2 * worker.gradient()
    worker.client.call("push", push, bulk=gradient.data.cast("B"), timeout=10)
    worker.stepped()
    worker.check()
    worker.close()


# -- gradients that come twice, in part, or not at all


def test_push_again_after_the_step_is_acknowledged(shard, pusher):
    """A push whose answer got lost may be sent again after the step: it is acknowledged, and not added."""
    data = framed("push", pusher.push_request(), pusher.gradient())
    pusher.iterate()
    with Raw(shard) as raw:
        raw.send(data)
        assert answer(raw)[1].iteration == 1
    pusher.check()
    pusher.iterate()


def test_push_again_before_the_step_is_added_once(shard, pusher):
    """A slice that is pushed twice counts once."""
    pusher.push(start=0, count=4)
    pusher.push(start=0, count=4)
    pusher.push(start=4, count=4)
    pusher.stepped()
    pusher.check()


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("cut", [3, 50, 4096, 100_000, 2**18, 2**18 + 1000, -2, -1])
def test_push_that_broke_off_is_completed_by_another_connection(shard, pusher, cut, is_last):
    """After a connection closed in the middle of a gradient, the same slice completes it exactly."""
    worker = ShardWorker(shard, LARGE)
    if is_last:
        worker.push(start=4, count=4)
    with Raw(shard) as raw:
        raw.send(framed("push", worker.push_request(0, 4), worker.gradient())[:cut])
        pusher.iterate()  # others go on meanwhile
    if not is_last:
        worker.push(start=4, count=4)
    worker.push(start=0, count=4)
    worker.stepped()
    worker.check()
    worker.iterate()
    worker.close()


def test_refused_large_push_leaves_the_connection_usable(shard, pusher):
    """A large gradient that is refused is read away, and what follows in the same segment is answered."""
    data = framed("push", pusher.push_request(), bytes(2**20), 1)
    with Raw(shard) as raw:
        raw.send(data + data + pull_frame(pusher, -1, 3))
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="1048576 bytes"):
                answer(raw)
        header, reply = answer(raw)
        assert (header.sequence_id, reply.parameters) == (3, pusher.expected.tobytes())
    pusher.iterate()


def test_gradient_beyond_the_limit():
    """A gradient that is longer than the server's limit is refused before it comes."""
    with serving(shard_service(), ServerLimits(bulk_bytes=2**16)) as address:
        worker = ShardWorker(address, elements=1000)
        with Raw(address) as raw:
            raw.send(framed("push", worker.push_request(), bytes(2**16 + 4))[:5000])
            with pytest.raises(ProtocolError, match="a field of 65540 bytes; at most 65536"):
                answer(raw)
            assert raw.is_closed()
        worker.iterate()
        worker.close()


# -- peers that read slowly

MANY = 6 * 2**20  # elements; 24 MiB do not fit into any socket's buffers


@pytest.fixture(scope="module")
def heavy(shard) -> Iterator[ShardWorker]:
    """The worker of a job whose parameters are many."""
    worker = ShardWorker(shard, MANY)
    yield worker
    worker.close()


def test_slow_reader_gets_one_version(shard, heavy):
    """A pull that is still on its way when steps are taken brings the version that it began with."""
    version, expected = heavy.version, heavy.expected.tobytes()
    with Raw(shard, receive_buffer=2**16) as raw:
        raw.send(pull_frame(heavy, -1))
        length = raw.read(4)  # the answer has begun
        heavy.iterate()
        half = codec.LENGTH.unpack(length)[0] // 2
        data = raw.read(half)
        heavy.iterate()
        data += raw.read(codec.LENGTH.unpack(length)[0] - half)
    reply = codec.decode(data, _ps.ParameterServer.pull_result).success
    assert reply.version == version
    assert reply.parameters == expected


def test_peer_that_dies_while_its_pull_is_on_the_way(shard, heavy, pusher):
    """A peer that vanishes in the middle of its answer leaves the others' parameters alone."""
    with Raw(shard, receive_buffer=2**16) as raw:
        raw.send(pull_frame(heavy, -1))
        raw.read(2**17)
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    heavy.iterate()
    pusher.iterate()


def test_peer_that_does_not_read_its_answer(caplog, wait_until):
    """A peer that takes nothing of its answer for the request deadline is cut off."""
    with serving(shard_service(), ServerLimits(request_timeout=0.3)) as address:
        worker = ShardWorker(address, MANY)
        with Raw(address, receive_buffer=2**16) as raw:
            raw.send(pull_frame(worker, -1))
            wait_until(lambda: "did not take its answer within 0.3 s" in caplog.text, "the cut")
            assert len(raw.read(4 * MANY)) < 4 * MANY
        worker.iterate()
        worker.close()


def test_peer_that_reads_slowly_is_not_cut_off():
    """A reader may take longer than the request deadline for an answer, while it keeps taking some."""
    with serving(shard_service(), ServerLimits(request_timeout=0.6)) as address:
        worker = ShardWorker(address, MANY)
        with Raw(address, receive_buffer=2**16) as raw:
            raw.send(pull_frame(worker, -1))
            (length,) = codec.LENGTH.unpack(raw.read(4))
            pieces = 30
            for _ in range(pieces):  # 3 s in all
                assert len(raw.read(length // pieces)) == length // pieces
                time.sleep(0.1)
            assert len(raw.read(length % pieces)) == length % pieces
        worker.close()


# -- deadlines and limits


def refused_after_deadline(address: Address, *pieces: bytes) -> str:
    """The reason for which a server ends a connection, which sends the pieces over and over until then."""
    with Raw(address) as raw:
        for piece in itertools.cycle(pieces or (b"",)):
            if piece:
                raw.send(piece)
            if select.select([raw.socket], [], [], 0.02 if pieces else 20)[0]:
                break
        with pytest.raises(ProtocolError) as refusal:
            answer(raw)
        assert raw.is_closed()
    return str(refusal.value)


@pytest.fixture
def impatient(request) -> Iterator[tuple[Address, MemberWorker]]:
    """A manager with the deadlines that the test gives, and a member that must come to no harm."""
    with serving(manager_service(reconnect_grace=30.0), ServerLimits(**request.param)) as address:
        worker = MemberWorker(address)
        worker.iterate()
        yield address, worker
        worker.iterate()
        worker.close()


@pytest.mark.parametrize("impatient", [{"handshake_timeout": 0.3}], indirect=True)
def test_silent_peer(impatient):
    """A peer that says nothing after connecting is told so, and the connection ends."""
    address, worker = impatient
    assert refused_after_deadline(address) == "no call came within 0.3 s of connecting"
    worker.iterate()


@pytest.mark.parametrize("impatient", [{"request_timeout": 0.3}], indirect=True)
def test_slow_loris(impatient):
    """A peer that sends its call byte by byte for longer than the request deadline is cut off."""
    address, worker = impatient
    with Raw(address) as raw:
        data = framed("leave", _manager.LeaveRequest(worker.identity)) + bytes(10**6)
        reason = ""
        raw.send(struct.pack(">i", 10**6) + data[4:8])
        for byte in data[8:]:
            raw.send(bytes([byte]))
            if select.select([raw.socket], [], [], 0.02)[0]:
                with pytest.raises(ProtocolError) as refusal:
                    answer(raw)
                reason = str(refusal.value)
                break
        assert reason == "the message was not complete within 0.3 s"
        assert raw.is_closed()


@pytest.mark.parametrize("impatient", [{"idle_timeout": 0.3}], indirect=True)
def test_idle_peer(impatient):
    """A peer that has called, and then is silent for the idle deadline, is told so."""
    address, worker = impatient
    with Raw(address) as raw:
        raw.send(framed("history", _manager.HistoryRequest(worker.identity.job, 0, 1)))
        assert answer(raw)[1].members == ["good"]
        with pytest.raises(ProtocolError, match=r"no call came for 0\.3 s"):
            answer(raw)
        assert raw.is_closed()


def test_waiting_for_a_barrier_is_not_idle():
    """A peer whose call is being answered may be silent for as long as that takes."""
    limits = ServerLimits(idle_timeout=0.3, handshake_timeout=0.3, request_timeout=0.3)
    with serving(manager_service(workers=2), limits) as address, Raw(address) as one:
        one.send(framed("join", join_request(Identity("j", "a", "a"))))
        assert refused_after_deadline(address) == "no call came within 0.3 s of connecting"
        with Raw(address) as two:
            two.send(framed("join", join_request(Identity("j", "b", "b"))))
            assert sum(answer(raw)[1].assignment.count for raw in (one, two)) == MemberWorker.BATCH


def test_gradient_that_stops_coming():
    """A gradient that makes no progress for the request deadline is given up; a retry completes it."""
    with serving(shard_service(), ServerLimits(request_timeout=0.3)) as address:
        worker = ShardWorker(address, LARGE)
        with Raw(address) as raw:
            raw.send(framed("push", worker.push_request(), worker.gradient())[:100_000])
            with pytest.raises(ProtocolError, match="not complete within"):
                answer(raw)
        worker.iterate()
        worker.close()


@pytest.mark.parametrize("impatient", [{"connections": 3}], indirect=True)
def test_too_many_connections(impatient, wait_until):
    """A connection too many is told so; one that closes makes room."""
    address, worker = impatient
    call = framed("history", _manager.HistoryRequest(worker.identity.job, 0, 1))
    with Raw(address) as one:
        with Raw(address) as two:
            for raw in (one, two):
                raw.send(call)
                answer(raw)
            with Raw(address) as three:
                with pytest.raises(ProtocolError, match="3 connections are open already"):
                    answer(three)
                assert three.is_closed()

        def admitted() -> bool:
            with Raw(address) as again, contextlib.suppress(ProtocolError):
                again.send(call)
                return answer(again)[1].members == ["good"]
            return False

        wait_until(admitted, "room for a connection")


def test_too_many_calls_in_flight():
    """A call too many on one connection ends it; calls that are answered do not count."""
    with serving(shard_service(), ServerLimits(calls_in_flight=4)) as address:
        worker = ShardWorker(address)
        with Raw(address) as raw:
            raw.send(b"".join(pull_frame(worker, -1, i) for i in range(10)))
            assert [answer(raw)[0].sequence_id for _ in range(10)] == list(range(10))
            raw.send(b"".join(pull_frame(worker, 1, i) for i in range(5)))
            with pytest.raises(ProtocolError, match="4 calls are unanswered"):
                answer(raw)
            assert raw.is_closed()
        worker.iterate()
        worker.close()


def test_client_reconnects_after_idle(caplog, wait_until):
    """A worker that was disconnected for idling goes on over a new connection, as the same member."""
    with serving(manager_service(reconnect_grace=30.0), ServerLimits(idle_timeout=0.3)) as address:
        worker = MemberWorker(address)
        wait_until(lambda: "no call came for 0.3 s" in caplog.text, "the end of the connection")
        worker.iterate()
        worker.close()


# -- processes


def test_second_manager_on_the_port():
    """A second manager on a port is refused with the address, and the first goes on."""
    with manager_process() as address:
        worker = MemberWorker(address)
        second = subprocess.run(
            [sys.executable, "-m", "evenpace", "manager", "--listen", str(address)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode != 0
        assert f"{address} is in use" in second.stderr
        assert "Traceback" not in second.stderr
        worker.iterate()
        worker.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_clean_shutdown_of_the_manager(number):
    """A manager that is told to stop refuses who waits, then ends with status 0."""
    with signalled_process("manager", "--workers", "2") as (popen, address), Raw(address) as raw:
        identity = Identity("j", "a", "a")
        # The second call shows that the first is waiting: calls on a connection are taken in order.
        raw.send(framed("join", join_request(identity)))
        raw.send(framed("history", _manager.HistoryRequest("j", 0, 1), sequence_id=2))
        assert answer(raw)[1].members == ["a"]
        assert ends_with(popen, number) == 0
        with pytest.raises(UnavailableError, match="shutting down"):
            answer(raw)
        assert raw.is_closed()


def test_clean_shutdown_of_a_shard():
    """A shard that is told to stop refuses who waits, then ends with status 0."""
    with signalled_process("ps") as (popen, address), Raw(address) as raw:
        worker = ShardWorker(address)
        raw.send(pull_frame(worker, 1) + pull_frame(worker, -1, 2))
        assert answer(raw)[0].sequence_id == 2
        assert ends_with(popen, signal.SIGTERM) == 0
        with pytest.raises(UnavailableError, match="shutting down"):
            answer(raw)
        worker.close()


# -- the client


@contextlib.contextmanager
def scripted(*scripts: Callable[[Raw], None]) -> Iterator[Address]:
    """A server that runs one script for each connection, in their order, and then refuses more."""
    with socket.create_server(ANYWHERE) as listener:
        connections: list[Raw] = []

        def run() -> None:
            for script in scripts:
                connection = Raw.__new__(Raw)
                connection.socket, _ = listener.accept()
                connection.socket.settimeout(20)
                connections.append(connection)
                script(connection)
            listener.close()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield Address(*listener.getsockname()[:2])
        finally:
            thread.join(timeout=30)
            for connection in connections:
                connection.socket.close()


def answering(members: list[str], method: str = "history", skew: int = 0) -> Callable[[Raw], None]:
    """A script that answers one call of history, under another name or sequence id where given."""

    def script(raw: Raw) -> None:
        data = raw.read_frame()
        assert data is not None
        header, _ = codec.read_header(data)
        result = _manager.BatchSizeManager.history_result(success=_manager.History(members=members))
        reply = codec.Header(method, TMessageType.REPLY, header.sequence_id + skew)
        raw.send(codec.frame(codec.encode(reply, result)))

    return script


def history_client(address: Address, **timeouts: float) -> Client:
    """Our own client of a manager."""
    return Client(_manager.BatchSizeManager, address, "manager", **timeouts)


HISTORY = _manager.HistoryRequest("j", 0, 1)


def test_late_answer_is_never_taken_for_another():
    """After a deadline the next call goes over a new connection, so the late answer is nobody's."""
    late = threading.Event()
    first: list[Raw] = []

    def silent(raw: Raw) -> None:
        first.append(raw)
        raw.read_frame()

    def second(raw: Raw) -> None:
        answer_late = _manager.BatchSizeManager.history_result(success=_manager.History(members=["late"]))
        for sequence_id in (1, 2):
            header = codec.Header("history", TMessageType.REPLY, sequence_id)
            first[0].send(codec.frame(codec.encode(header, answer_late)))
        late.set()
        answering(["right"])(raw)

    with scripted(silent, second) as address:
        client = history_client(address)
        with pytest.raises(DeadlineExceededError, match=f"at {address} did not answer history"):
            client.call("history", HISTORY, timeout=0.3)
        assert client.call("history", HISTORY, timeout=20).members == ["right"]
        assert late.is_set()
        client.close()


@pytest.mark.parametrize(
    ("script", "pattern"),
    [
        (answering([], skew=1), "answered history 2, not history 1"),
        (answering([], method="leave"), "answered leave 1, not history 1"),
        (lambda raw: (raw.read_frame(), raw.send(b"HTTP/1.1 400 Bad Request\r\n")), "is it evenpace's"),
        (lambda raw: (raw.read_frame(), raw.send(bytes(8))), "a frame of 0 bytes"),
        (lambda raw: (raw.read_frame(), raw.send(message("history", STOP, 2))), "gave no result"),
        (lambda raw: (raw.read_frame(), raw.send(message("history", STOP, 1))), "answered history 1"),
    ],
)
def test_answer_that_is_none_is_refused(script, pattern):
    """An answer to another call, or none at all, is an error, and the connection is not used again."""
    with scripted(script, answering(["right"])) as address:
        client = history_client(address)
        with pytest.raises(ProtocolError, match=pattern):
            client.call("history", HISTORY, timeout=20)
        assert client.call("history", HISTORY, timeout=20).members == ["right"]
        client.close()


def test_client_goes_on_after_the_connection_broke():
    """A call whose connection breaks before its answer is sent again over a new one."""
    broken = [lambda raw: raw.socket.close(), lambda raw: (raw.read_frame(), raw.socket.close())]
    with scripted(*broken, answering(["right"])) as address:
        client = history_client(address)
        assert client.call("history", HISTORY, timeout=20).members == ["right"]
        client.close()


def test_client_goes_on_after_the_server_restarted():
    """A client finds a server that was restarted on its port."""
    with serving(shard_service()) as address:
        worker = ShardWorker(address)
        worker.iterate()
    with serving(shard_service(), address=address):
        with pytest.raises(NotMemberError, match="has not opened"):
            worker.check()
        again = ShardWorker(address)
        again.iterate()
        again.close()
    worker.close()


def test_nobody_listens():
    """Where nobody listens, the error names the service and the address."""
    with socket.create_server(ANYWHERE) as listener:
        address = Address(*listener.getsockname()[:2])
    client = history_client(address, connect_timeout=0.2)
    with pytest.raises(ConnectionLostError, match=f"cannot reach the manager at {address}"):
        client.call("history", HISTORY)


@pytest.mark.parametrize(("held", "asked"), [(10, 9), (10, 11), (LARGE, LARGE + 1), (LARGE, 10), (10, LARGE)])
def test_pull_of_another_length(shard, held, asked):
    """Parameters that do not have the length that the caller expects are refused, not cut or padded."""
    worker = ShardWorker(shard, held)
    buffer = np.zeros(asked, dtype=np.float32)
    request = _ps.PullRequest(worker.identity, -1)
    with pytest.raises(ProtocolError, match=f"sent {4 * held} bytes of pull, not {4 * asked}"):
        worker.client.call("pull", request, into=buffer.data.cast("B"))
    assert not buffer.any()
    worker.iterate()
    worker.close()


def test_client_hears_why_it_is_refused():
    """A client whose large call is refused while it is being sent gets the server's reason."""
    with serving(shard_service(), ServerLimits(bulk_bytes=2**16)) as address:
        worker = ShardWorker(address, elements=10)
        with pytest.raises((ConnectionLostError, ProtocolError), match="are allowed"):
            worker.client.call("push", worker.push_request(), bulk=memoryview(bytes(2**25)), timeout=5)
        worker.iterate()
        worker.close()


# -- anything at all


def valid_frames() -> list[bytes]:
    """Some frames that are right, to be spoilt."""
    nobody = Identity("fuzz", "w", "i")
    group = _ps.ParameterGroup(10, {"lr": 1.0, "momentum": 0.9})
    push = _ps.PushRequest(nobody, Assignment(0, 0, 0, 8, 8), [group, group])
    return [
        framed("join", join_request(nobody, total_batch_size=0)),
        framed("report", _manager.ReportRequest(nobody, 0, 0.5, 0.0, 0.5, 0.5)),
        framed("history", _manager.HistoryRequest("fuzz", 0, 1)),
        framed("open", open_request(nobody, 0)),
        framed("push", push, bytes(40)),
        framed("push", push, bytes(8000)),
        framed("pull", _ps.PullRequest(nobody, -1)),
    ]


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A right frame with some bytes changed, put in or left out, or its length words made extreme."""
    data = bytearray(draw(st.sampled_from(valid_frames())))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, min(len(data), 400) - 1)))
        match draw(st.sampled_from(["change", "word", "insert", "cut", "repeat"])):
            case "change":
                data[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
            case "word":
                word = draw(st.sampled_from([-(2**31), -1, 0, 1, 255, 4096, 2**20, 2**31 - 1]))
                data[place : place + 4] = struct.pack(">i", word)
            case "insert":
                data[place:place] = draw(st.binary(max_size=8))
            case "cut":
                del data[place : place + draw(st.integers(1, 50))]
            case "repeat":
                data[place:place] = data[place : place + 20]
    if draw(st.booleans()):
        data[:4] = struct.pack(">i", len(data) - 4)
    return bytes(data)


ANYTHING = st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(codec.frame), spoilt())


@settings(max_examples=600, deadline=None)
@given(ANYTHING, st.integers(0, 2**31 - 1))
def test_any_bytes_scan_and_decode_or_are_refused(data, extra):
    """Whatever bytes come, reading them ends in a message or in a ProtocolError."""
    for length in (len(data) - 4, len(data) - 4 + extra):
        try:
            header, bulk = codec.scan(data[4:], length)
            body = data[4:] if bulk is None else codec.without_bulk(data[4:], bulk)
            with contextlib.suppress(StopIteration):
                service_of(header.method)
                codec.decode(body, getattr(service_of(header.method), f"{header.method}_args"))
        except ProtocolError:
            continue


@pytest.mark.parametrize("kind", ["manager", "shard"])
def test_any_bytes_leave_a_server_serving(request, kind):
    """Whatever bytes come, the server answers or ends that connection, and goes on with the others."""
    limits = ServerLimits(handshake_timeout=60.0, request_timeout=60.0)
    service, worker_type = {
        "manager": (manager_service(), MemberWorker),
        "shard": (shard_service(), ShardWorker),
    }[kind]
    with serving(service, limits) as address:
        worker = worker_type(address)

        @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(ANYTHING, min_size=1, max_size=3))
        def throw(pieces: list[bytes]) -> None:
            with Raw(address) as raw:
                raw.send(b"".join(pieces))
                with contextlib.suppress(OSError):
                    raw.socket.shutdown(socket.SHUT_WR)
                while raw.read_frame() is not None:
                    pass
            worker.iterate()

        throw()
        worker.close()
