"""Invalid requests: a declared exception for the sender, and no effect on others."""

import itertools
import struct
from typing import Any

import pytest

import idl
from idl.errors import InvalidRequestError, NotMemberError, ProtocolError, RewoundError
from tests.services import MemberWorker, Raw, join_request, manager_service, open_request, serving
from tests.wire import (
    DOUBLE,
    I32,
    I64,
    INF,
    LIST,
    NAN,
    STOP,
    STRING,
    STRUCT,
    answer,
    field,
    framed,
    i64,
    identity_field,
    message,
    pull_frame,
    request,
    text,
)

_manager = idl.batchsize_manager
_ps = idl.parameter_server
Identity, Assignment = idl.common.Identity, idl.common.Assignment


def bad_manager_requests(me: Any) -> dict[str, tuple[str, Any, type, str]]:
    """Return by name a method, its request, the error and its message; `me` has reported once."""
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
            "runs with seed 1, but 'another' wants seed 99",
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
        "communication_time": (NAN, INF, -1.0),
        "backward_time": (NAN, INF, -1.0),
        "last_bucket_time": (NAN, INF, -1.0),
        "iteration": (-1, -(2**63), 2**63 - 1),
    }.items():
        for value in values:
            cases[f"{name} {value}"] = ("report", report(**{name: value}), InvalidRequestError, name)
    for method, kind in (("heartbeat", "Heartbeat"), ("recover", "Recover"), ("rewind", "Rewind")):
        request = getattr(_manager, f"{kind}Request")(me, -1)
        cases[f"{method}, attempt"] = (method, request, InvalidRequestError, "attempt -1")
    for name in ("attempt", "start"):
        cases[f"report, {name}"] = ("report", report(**{name: -1}), InvalidRequestError, f"{name} -1")
    for limit in (-1, 0, 1001, 2**63 - 1):
        cases[f"limit {limit}"] = (
            "history",
            _manager.HistoryRequest(me.job, 0, limit),
            InvalidRequestError,
            "limit",
        )
    return cases


def bad_shard_requests(me: Any) -> dict[str, tuple[str, Any, Any, type, str]]:
    """Return by name method, request, gradient, error and message; `me` has 1000 floats at version 1."""
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
        "push, outside": ("push", push(start=3, batch_start=4), right, InvalidRequestError, "not within"),
        "push, batch": ("push", push(batch_start=-1), right, InvalidRequestError, "batch_start -1"),
        "push, attempt": ("push", push(attempt=-1), right, InvalidRequestError, "attempt -1"),
        "push, another attempt": ("push", push(attempt=3), right, RewoundError, "attempt 3, .* is in 0"),
        "pull, another attempt": ("pull", _ps.PullRequest(me, 0, None, 1), None, RewoundError, "attempt 1"),
        "fence": ("fence", _ps.FenceRequest(me), None, InvalidRequestError, "attempt"),
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
    """The manager names the invalid value, keeps the connection, and changes nothing."""
    method, argument, error, pattern = bad_manager_requests(member.identity)[name]
    with Raw(manager) as raw:
        raw.send(framed(method, argument))
        with pytest.raises(error, match=pattern):
            answer(raw)
        raw.send(framed("history", _manager.HistoryRequest(member.identity.job, 0, 10), sequence_id=2))
        header, history = answer(raw)
        assert (header.sequence_id, history.run) == (2, member.run)
    member.iterate()


@pytest.mark.parametrize("name", bad_shard_requests(SOMEBODY))
def test_shard_refuses_bad_request(shard, pusher, name):
    """A shard names the invalid value, reads and drops the gradient, and changes nothing."""
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
    """Return by name a call of report or history with a field of another type, and the error."""
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
    """A method that the service lacks is answered with those that it has, and the connection stays open."""
    with Raw(manager) as raw:
        for method in ("pull", "", "x" * 256, "__class__"):
            raw.send(message(method, STOP))
            with pytest.raises(ProtocolError, match=r"BatchSizeManager has .*report"):
                answer(raw)
        raw.send(message("large", field(1, STRING, text("x" * 10_000)) + STOP))
        with pytest.raises(ProtocolError, match="no method 'large'"):
            answer(raw)
        raw.send(framed("history", _manager.HistoryRequest(member.identity.job, 0, 1)))
        assert answer(raw)[1].run == member.run
    member.iterate()
