"""Invalid requests: a declared exception for the sender, and no effect on others."""

import itertools
import struct
from typing import Any

import pytest

import idl
from idl.errors import InvalidRequestError, NotMemberError, ProtocolError, RewoundError
from tests.services import Raw, join_request, open_request
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


def bad_manager_requests(me: Any) -> dict[str, tuple[str, Any, str, type]]:
    """Return by name a method, its request, the error's message and type; `me` has reported once."""
    other = Identity("new job", "w", "i")

    def report(identity: Any = me, **changes: Any) -> Any:
        values = {"iteration": 1, "batch_processing_time": 0.5, "waiting_time": 0.0, "cpu_usage": 0.5}
        return _manager.ReportRequest(identity, **{**values, "memory_usage": 0.5, **changes})

    def join(*names: str, **changes: Any) -> Any:
        return join_request(Identity(*names), **changes)

    invalid = {
        "no request": ("report", None, "argument 1, request, is missing"),
        "no identity": ("join", join_request(None), "identity is missing"),
        "empty name": ("join", join("", "w", "i"), "job ''"),
        "control character": ("join", join("j", "a\nb", "i"), "a.nb"),
        "long name": ("join", join("j" * 201, "w", "i"), "1 to 200"),
        "no spec": ("join", _manager.JoinRequest(other), "dataset_size is missing"),
        "no field": ("join", join_request(other, seed=None), "seed is missing"),
        "second of a name": ("join", join(me.job, me.worker, "other"), "is a member already"),
        "other spec": (
            "join",
            join(me.job, "another", "i", seed=99),
            "seed 1, but 'another' wants",
        ),
        "iteration to come": ("report", report(iteration=2), "1 is next"),
        "no history": ("history", _manager.HistoryRequest("?", 0, 1), "no job '?'"),
        "limit": ("history", _manager.HistoryRequest(me.job, 0, 1001), "limit"),
    }
    for name in ("dataset_size", "total_batch_size", "minimum", "granularity"):
        for value in (-1, 2**63 - 1):
            changes = {name: value, **({"maximum": 2**63 - 1} if value > 0 else {})}
            said = "granularity|minimum" if name in ("minimum", "granularity") else name
            invalid[f"{name} {value}"] = ("join", join_request(other, **changes), said)
    for name, values in {
        "batch_processing_time": (NAN, 0.0, None),
        "waiting_time": (NAN, INF, -1.0),
        "cpu_usage": (NAN, -0.5, 1.5),
        "memory_usage": (2.0,),
        "communication_time": (-1.0,),
        "backward_time": (INF,),
        "last_bucket_time": (NAN,),
        "iteration": (-1, 2**63 - 1),
        "attempt": (-1,),
        "start": (-1,),
    }.items():
        for value in values:
            invalid[f"report, {name} {value}"] = ("report", report(**{name: value}), name)
    for method, kind in (("heartbeat", "Heartbeat"), ("recover", "Recover"), ("rewind", "Rewind")):
        request = getattr(_manager, f"{kind}Request")(me, -1)
        invalid[f"{method}, attempt"] = (method, request, "attempt -1")
    not_members = {
        "other incarnation": (
            "report",
            report(Identity(me.job, me.worker, "other")),
            "incarnation 'other', is not a member",
        ),
        "unknown job": ("report", report(other), "no job 'new job'"),
        "leave another": ("leave", _manager.LeaveRequest(other), "no job"),
    }
    return with_error(InvalidRequestError, invalid) | with_error(NotMemberError, not_members)


def with_error(error: type, cases: dict[str, tuple]) -> dict[str, tuple]:
    """Return cases that end with an error of this type."""
    return {name: (*case, error) for name, case in cases.items()}


def bad_shard_requests(me: Any) -> dict[str, tuple[str, Any, Any, str, type]]:
    """Return by name method, request, gradient, message and error; `me` has 1000 floats at version 1."""
    other = Identity("new job", "w", "i")
    group = _ps.ParameterGroup

    def opening(*groups: Any, **changes: Any) -> Any:
        return open_request(other, 10, **({"groups": list(groups)} if groups else {}), **changes)

    def push(identity: Any = me, groups: Any = None, **changes: Any) -> Any:
        values = {"iteration": 1, "epoch": 0, "start": 0, "count": 8, "total": 8}
        return _ps.PushRequest(identity, Assignment(**{**values, **changes}), groups)

    right, lr = bytes(4000), {"lr": 1.0}
    invalid: dict[str, tuple[str, Any, Any, str]] = {
        "no request": ("pull", None, None, "argument 1, request, is missing"),
        "no identity": ("open", open_request(None, 10), None, "identity is missing"),
        "optimizer": ("open", opening(optimizer="lion"), None, "optimizer 'lion'"),
        "no groups": ("open", opening(groups=[]), None, "groups"),
        "negative": ("open", opening(group(-5, lr)), None, "elements -5"),
        "huge": ("open", opening(group(2**62, lr)), None, "elements 4611686018427387904"),
        "more than fits": ("open", opening(group(2**40, lr)), None, "may hold"),
        "part outside": ("open", opening(part=_ps.Part(2, 2, 0)), None, "part, shard 2: must be .* 0 to 1"),
        "part of none": ("open", opening(part=_ps.Part(0, 0, 0)), None, "part, shards 0"),
        "part before": ("open", opening(part=_ps.Part(0, 1, -1)), None, "part, first -1"),
        "part without": ("open", opening(part=_ps.Part(None, 1, 0)), None, "part, shard is missing"),
        "other model": ("open", open_request(me, 10), None, "is it the same model"),
        "version": ("pull", _ps.PullRequest(me, -2), None, "version -2"),
        "push, no request": ("push", None, right, "request, is missing"),
        "push, no assignment": ("push", _ps.PushRequest(me), right, "assignment"),
        "push, no gradient": ("push", push(), None, "0 bytes, but the shard's 1000"),
        "push, short": ("push", push(), right[1:], "3999 bytes"),
        "push, long": ("push", push(), bytes(2**19), "524288 bytes"),
        "push, outside": ("push", push(start=3, batch_start=4), right, "not within"),
        "push, batch": ("push", push(batch_start=-1), right, "batch_start -1"),
        "push, attempt": ("push", push(attempt=-1), right, "attempt -1"),
        "fence": ("fence", _ps.FenceRequest(me), None, "attempt"),
        "push, future": ("push", push(iteration=2), right, "is at 1"),
        "push, options": ("push", push(groups=[group(7, lr)]), right, "the job has"),
        "push, bad option": ("push", push(groups=[group(1000, {})]), right, "lr is missing"),
        "initialise, version": ("initialise", _ps.InitialiseRequest(me, -1), right, "-1"),
        "forfeit": ("forfeit", _ps.ForfeitRequest(me, 1, -1, 2, 4), None, "start -1"),
    }
    for name, value in itertools.product(("iteration", "start", "count", "total"), (-1, 2**63 - 1)):
        invalid[f"push, {name} {value}"] = ("push", push(**{name: value}), right, name)
    for changes in ({"count": 0}, {"count": 9}, {"total": 0}, {"start": None}):
        invalid[f"push, {changes}"] = ("push", push(**changes), right, next(iter(changes)))
    not_members = {
        "unknown job": ("pull", _ps.PullRequest(other, 0), None, "has not opened"),
        "push, unknown job": ("push", push(other), right, "has not opened"),
        "push, large, unknown job": ("push", push(other), bytes(2**19), "has not opened"),
    }
    rewound = {
        "push, another attempt": ("push", push(attempt=3), right, "attempt 3, .* is in 0"),
        "pull, another attempt": ("pull", _ps.PullRequest(me, 0, None, 1), None, "attempt 1"),
    }
    return (
        with_error(InvalidRequestError, invalid)
        | with_error(NotMemberError, not_members)
        | with_error(RewoundError, rewound)
    )


SOMEBODY = Identity("j", "w", "i")


@pytest.mark.parametrize("name", bad_manager_requests(SOMEBODY))
def test_manager_refuses_bad_request(manager, member, name):
    """The manager names the invalid value, keeps the connection, and changes nothing."""
    method, argument, pattern, error = bad_manager_requests(member.identity)[name]
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
    method, argument, bulk, pattern, error = bad_shard_requests(pusher.identity)[name]
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
