"""Calls with long answers, for attackers that ask again and again without reading the answers."""

from typing import Any

from thriftpy2.thrift import TMessageType

import idl
from lab.attacks.honest_job import WORKERS
from rpc import codec

_manager, _shard = idl.batchsize_manager, idl.parameter_server
_ELEMENTS = 250_000  # 1 MB of parameters
_ITERATIONS = 50  # iterations of the job whose history is asked for
_QUESTIONS = 400  # calls with a long answer each


def frame(definition: type, method: str, request: Any, bulk: bytes | None = None) -> bytes:
    """Return the frame of a call as every client writes it."""
    arguments = getattr(definition, f"{method}_args")(request)
    if bulk is not None:
        codec.set_bulk_field(arguments, bulk)
    return codec.frame(codec.encode(codec.Header(method, TMessageType.CALL, 0), arguments))


def long_histories(job: str) -> bytes:
    """Return calls to the manager: a job's iterations, then requests for its records, on one connection."""
    service = _manager.BatchSizeManager
    identities = [idl.common.Identity(job, f"deaf-{number}", "deaf") for number in range(WORKERS)]
    spec = _manager.JobSpec(10**6, 64, 0, False, True)
    bounds = _manager.Bounds(1, 1000, 1)
    calls = [frame(service, "join", _manager.JoinRequest(one, spec, bounds)) for one in identities]
    for iteration in range(_ITERATIONS):
        calls += [
            frame(service, "report", _manager.ReportRequest(one, iteration, 0.5, 0.0, 0.5, 0.5))
            for one in identities
        ]
    question = frame(service, "history", _manager.HistoryRequest(job, 0, 1000))
    return b"".join(calls) + _QUESTIONS * question


def long_pulls(job: str) -> bytes:
    """Return calls to a shard: 1 MB of parameters, pulled again and again, in several versions."""
    service = _shard.ParameterServer
    identity = idl.common.Identity(job, "deaf", "deaf")
    groups = [_shard.ParameterGroup(_ELEMENTS, {"lr": 0.1})]
    values = bytes(4 * _ELEMENTS)
    pull = frame(service, "pull", _shard.PullRequest(identity=identity, version=-1))
    opening = frame(
        service,
        "open",
        _shard.OpenRequest(identity=identity, dtype="float32", optimizer="sgd", groups=groups),
    )
    opening += frame(service, "initialise", _shard.InitialiseRequest(identity=identity, version=0), values)
    steps = b""
    for iteration in range(4):
        assignment = idl.common.Assignment(iteration, 0, 64 * iteration, 64, 64)
        push = _shard.PushRequest(identity=identity, assignment=assignment)
        steps += frame(service, "push", push, values) + pull
    return opening + steps + _QUESTIONS * pull
