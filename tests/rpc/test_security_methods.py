"""Tokens for every method of every service in the .thrift files: a method added later is tested too.

What tokens are, and how connections show them, is in `test_security_tokens`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thriftpy2.thrift import TType

import idl
from batchsize_manager.partitions.partitioned_job import PartitionsConfig
from batchsize_manager.partitions.service import DataPartitionService
from idl.errors import DECLARED, InvalidRequestError, UnauthorisedError
from rpc import codec, tokens
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.guard import AUTHENTICATE
from rpc.server import Security, Server
from tests.services import manager_service, serving, shard_service, with_token
from worker.partitions.handover import PeerService
from worker.partitions.samples import SampleForm

# How each service is made here, and what a job with the token of "digits" is called there.
SERVED = {
    idl.batchsize_manager.BatchSizeManager: (manager_service, "digits"),
    idl.parameter_server.ParameterServer: (shard_service, "digits/run"),
    idl.data_partition.DataPartitionManager: (
        lambda: DataPartitionService(PartitionsConfig()),
        "digits",
    ),
}
_SHOWS = "it is what shows the token"
NEEDS_NO_TOKEN = {  # why
    "BatchSizeManager.authenticate": _SHOWS,
    "ParameterServer.authenticate": _SHOWS,
    "DataPartitionManager.authenticate": _SHOWS,
    "PartitionPeer.take": "workers have no key to check one with; members know the receiver's incarnation",
}


CONTRACT = {
    f"{definition.__name__}.{method}": (definition, method)
    for name in idl.__all__
    for definition in vars(getattr(idl, name)).values()
    if hasattr(definition, "thrift_services")
    for method in definition.thrift_services
}
ASKED_FOR = {name: what for name, what in CONTRACT.items() if name not in NEEDS_NO_TOKEN}

every_method = pytest.mark.parametrize(("definition", "method"), ASKED_FOR.values(), ids=ASKED_FOR)


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
    """Make a key file with one key."""
    file = tmp_path_factory.mktemp("keys") / "tokens.key"
    tokens.write_new_key(file, add=False)
    return file


@pytest.fixture(scope="module")
def guarded(key) -> Iterator[dict[type, Address]]:
    """Start all services that can require tokens, each requiring them."""
    with contextlib.ExitStack() as stack:
        yield {
            definition: stack.enter_context(serving(make(), security=Security(token_keys=key)))
            for definition, (make, _) in SERVED.items()
        }


def filled(kind: Any, job: str | None) -> Any:
    """Make a Thrift struct with a value in every field; None in each job's name if `job` is None."""
    values = {
        spec[1]: job if spec[1] == "job" and spec[0] == TType.STRING else _value(spec[0], spec[2], job)
        for spec in kind.thrift_spec.values()
    }
    return kind(**values)


def _value(kind: int, of: Any, job: str | None) -> Any:
    """Make a value of a Thrift type; `of` is what the specification adds to the type."""
    if kind == TType.STRUCT:
        return filled(of, job)
    if kind == TType.LIST:
        return [_value(*(of if isinstance(of, tuple) else (of, None)), job)]
    if kind == TType.MAP:
        return {_value(of[0], None, job): _value(of[1], None, job)}
    return {
        TType.BOOL: True,
        TType.DOUBLE: 0.5,
        TType.I32: 1,
        TType.I64: 1,
        TType.STRING: "1",
        TType.BINARY: b"1",
    }[kind]


def call(
    address: Address, definition: type, method: str, job: str | None, credentials: Credentials | None
) -> None:
    """Call a method; a refusal by the service itself counts as an answer.

    Raises:
        UnauthorisedError: The call was refused before the service has seen it.
    """
    request = filled(codec.struct_type(definition, f"{method}_args", 1), job)
    bulk = memoryview(bytes(4)) if 2 in getattr(definition, f"{method}_args").thrift_spec else None
    client = Client(definition, address, "service", call_timeout=120, credentials=credentials)
    others = tuple(error for error in DECLARED.values() if error is not UnauthorisedError)
    with contextlib.closing(client), contextlib.suppress(*others):
        client.call(method, request, bulk=bulk, unavailable_timeout=0.0)


def test_every_method_is_asked_for_or_excused():
    """Methods without tokens are listed here; all others belong to a service that is tested below."""
    assert NEEDS_NO_TOKEN.keys() <= CONTRACT.keys()
    assert {definition for definition, _ in ASKED_FOR.values()} == SERVED.keys()


@every_method
def test_no_method_without_a_token(guarded, definition, method):
    """A caller without a token is asked for one."""
    with pytest.raises(UnauthorisedError, match="asks for a job's token"):
        call(guarded[definition], definition, method, SERVED[definition][1], None)


@every_method
def test_no_method_with_another_jobs_token(guarded, key, definition, method):
    """A caller with another job's token is refused with both names, even if one begins the other."""
    job = SERVED[definition][1]
    for other in ("other", "digit"):
        with pytest.raises(UnauthorisedError, match=f"is for job '{other}', not for '{job}'"):
            call(guarded[definition], definition, method, job, with_token(key, other))


@every_method
def test_no_method_for_a_job_that_is_not_named(guarded, key, definition, method):
    """With one job's token a call must name its job; with a token for all jobs it need not."""
    with pytest.raises(UnauthorisedError, match="is for job 'digits', not for none"):
        call(guarded[definition], definition, method, None, with_token(key, "digits"))
    call(guarded[definition], definition, method, None, with_token(key, tokens.ALL_JOBS))


@every_method
def test_each_method_with_the_jobs_own_token(guarded, key, definition, method):
    """A call with this job's token, or with one for all jobs, reaches the service."""
    for job in ("digits", tokens.ALL_JOBS):
        call(guarded[definition], definition, method, SERVED[definition][1], with_token(key, job))


def test_a_service_that_cannot_be_shown_a_token_does_not_ask_for_one(key):
    """Token keys are refused for a service without `authenticate`, where they would be useless."""
    assert AUTHENTICATE not in PeerService.definition.thrift_services
    service = PeerService("digits", SampleForm(0, lambda example, array: array), lambda *chunk: None)
    with pytest.raises(InvalidRequestError, match="PartitionPeer cannot be asked for tokens"):
        Server(service, security=Security(token_keys=key))
