"""Checks of a service: whether it can be reached, is of the right kind, and lets this side in."""

import contextlib
import datetime
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import idl
from batchsize_manager.client import ManagerClient
from evenpace.doctor.findings import Finding, Subject, judged, milliseconds, note, ok, problem, warning
from evenpace.doctor.job_network import jobs_bound_by_network
from evenpace.doctor.reach import reach, shake_hands
from idl.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EvenpaceError,
    InvalidRequestError,
    NotMemberError,
    ProtocolError,
    UnauthorisedError,
    UnavailableError,
)
from idl.version import __version__
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.places import Places, Where
from rpc.tokens import ALL_JOBS, Token

_NOBODY = "evenpace-doctor"  # a name that no job or worker has
_CALLS = 5  # of which the median time is taken
_SLOW = 0.02  # seconds for a call and its answer: much, compared with iterations of tenths of a second
_CLOCKS_APART = 1.0  # seconds


def manager(subject: Subject, address: Where) -> Iterator[Finding]:
    """Check a manager."""
    wire = idl.batchsize_manager

    def ask(client: Client, job: str) -> None:
        ManagerClient.over(client).history(job, 0, 1)

    yield from _service(subject, address, _Kind("manager", wire.BatchSizeManager, ask, _manager_checks))


def shard(subject: Subject, address: Where) -> Iterator[Finding]:
    """Check a shard of the parameter server."""
    wire = idl.parameter_server

    def ask(client: Client, job: str) -> None:
        identity = idl.common.Identity(f"{job}/{_NOBODY}", _NOBODY, _NOBODY)
        client.call("pull", wire.PullRequest(identity=identity, version=-1))

    yield from _service(subject, address, _Kind("parameter server", wire.ParameterServer, ask))


def each_shard_once(subject: Subject) -> Iterator[Finding]:
    """Check that no two of the addresses are the same shard's."""
    job = _job(subject.credentials)
    identity = idl.common.Identity(f"{job}/{_NOBODY}", _NOBODY, _NOBODY)
    wire = idl.parameter_server
    addresses: dict[str, Where] = {}  # by the shard's process
    for address in subject.shards:
        with contextlib.suppress(EvenpaceError), contextlib.ExitStack() as stack:  # its own check finds them
            client = _client(subject, address, wire.ParameterServer, "parameter server")
            stack.enter_context(contextlib.closing(client))
            process = client.call("fence", wire.FenceRequest(identity, 0)).process
            other = addresses.setdefault(process, address) if process else address
            if other is not address:
                yield problem(
                    "shards",
                    f"{other} and {address} are the same shard",
                    "name each shard once: every part of the parameters needs one of its own",
                )


def partitions(subject: Subject, address: Where) -> Iterator[Finding]:
    """Check a DataPartitionManager."""
    wire = idl.data_partition

    def ask(client: Client, job: str) -> None:
        identity = idl.common.Identity(job, _NOBODY, _NOBODY)
        try:
            # A request without samples is refused. A manager has methods of the same names, but refuses
            # this request for another reason.
            client.call("join", wire.JoinRequest(identity=identity, address="127.0.0.1:1", samples=0))
        except InvalidRequestError as error:
            if not str(error).startswith("samples"):
                raise ProtocolError("no method 'join' of samples; BatchSizeManager has another") from error

    yield from _service(subject, address, _Kind("DataPartitionManager", wire.DataPartitionManager, ask))


@dataclass(frozen=True)
class _Kind:
    """A kind of service."""

    name: str  # its name in findings
    definition: type  # its Thrift service
    # Function that makes a call about a job, which costs the service nothing.
    ask: Callable[[Client, str], None]
    more: Callable[[Client, str, str], Iterator[Finding]] = lambda *_: iter(())  # further checks by calls


def _service(subject: Subject, where: Where, kind: _Kind) -> Iterator[Finding]:
    about = f"{kind.name} {where}"
    try:
        address = _present(subject, Places.of(where).now())
    except UnavailableError as error:
        yield problem(about, str(error), "see the process that writes the file")
        return
    reached = yield from reach(subject, address, about)
    if not reached:
        return
    if subject.credentials.tls and not (yield from shake_hands(subject, address, about)):
        return
    yield from _call(subject, address, about, kind)


def _present(subject: Subject, addresses: Sequence[Address]) -> Address:
    """Return the address, of the service's places, at which somebody listens; the first if nobody does."""
    for address in addresses if len(addresses) > 1 else ():
        with (
            contextlib.suppress(OSError),
            socket.create_connection(address, timeout=subject.timeout / len(addresses)),
        ):
            return address
    return addresses[0]


# -- calls


def _call(subject: Subject, address: Address, about: str, kind: _Kind) -> Iterator[Finding]:
    """Check whether the service answers as one of its kind, and lets this side in."""
    job = _job(subject.credentials)
    try:
        client = _client(subject, address, kind.definition, kind.name)
    except EvenpaceError as error:
        yield problem(about, str(error), "give credentials that can be used")
        return
    try:
        times = []
        for _ in range(_CALLS):
            begun = time.perf_counter()
            with contextlib.suppress(InvalidRequestError, NotMemberError):  # no such job: a sign of life
                kind.ask(client, job)
            times.append(time.perf_counter() - begun)
        typical = statistics.median(times)
        yield judged(
            about,
            f"a call takes {milliseconds(typical)}",
            fine=typical <= _SLOW,
            advice="see the network and the service's load: each iteration needs several calls in turn",
        )
        yield from kind.more(client, job, about)
    except UnauthorisedError as error:
        yield _unauthorised(subject, about, error)
    except ProtocolError as error:
        yield _of_another_kind(subject, address, about, error)
    except (ConnectionLostError, DeadlineExceededError, UnavailableError) as error:
        server_name = _web_server(subject, address)
        if server_name:
            yield _web(about, server_name)
        else:
            yield problem(about, str(error), "see its log; restart it, if it is frozen")
    finally:
        client.close()


def _client(subject: Subject, where: Where, definition: type, name: str) -> Client:
    return Client(
        definition,
        where,
        name,
        connect_timeout=subject.timeout,
        call_timeout=subject.timeout,
        credentials=subject.credentials,
    )


def _job(credentials: Credentials) -> str:
    """Return a job that this side may ask for."""
    try:
        job = Token.parse(credentials.read_token()).name
    except EvenpaceError:
        return _NOBODY
    return _NOBODY if job == ALL_JOBS else job


def _unauthorised(subject: Subject, about: str, error: UnauthorisedError) -> Finding:
    message = str(error)
    if "asks for a job's token" in message:
        return problem(about, "asks for a job's token, and none was given", "give one with --token-file")
    if "does not take this side's certificate" in message:
        return problem(about, message, "use a certificate of the authority that the service trusts")
    return problem(
        about, f"does not let this side in: {message}", "issue a token with the service's own key file"
    )


def _of_another_kind(subject: Subject, address: Address, about: str, error: ProtocolError) -> Finding:
    message = str(error)
    if "speaks TLS" in message:
        return problem(about, "speaks TLS", "give --tls, with a folder from `evenpace certs issue`")
    if "no method" in message:
        other = message.rpartition("; ")[2].partition(" has ")[0]
        return problem(
            about,
            f"is another service, {other}",
            "see which address is whose: --manager, --ps, --partitions",
        )
    server_name = _web_server(subject, address)
    if server_name:
        return _web(about, server_name)
    return problem(
        about, f"is no service of evenpace's: {message}", "see what listens on that port, and who calls it so"
    )


def _web(about: str, server_name: str) -> Finding:
    return problem(
        about, f"is a web server{server_name}, no service of evenpace's", "see which port the service has"
    )


def _web_server(subject: Subject, address: Address) -> str:
    """Return how a web server at the address names itself; empty if there is none."""
    try:
        with socket.create_connection(address, timeout=subject.timeout) as connection:
            connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
            answer = connection.recv(4096)
    except OSError:
        return ""
    if not answer.startswith(b"HTTP/"):
        return ""
    for line in answer.split(b"\r\n"):
        if line.lower().startswith(b"server:"):
            return f" ({line.partition(b':')[2].strip().decode('ascii', 'replace')})"
    return " "


# -- checks of a manager alone


def _manager_checks(client: Client, job: str, about: str) -> Iterator[Finding]:
    """Compare the manager's version and clock with this side's, and look at its jobs' transfers."""
    mine = None if job == _NOBODY else job
    try:
        asked = time.time()
        jobs = ManagerClient.over(client).jobs(mine)
        answered = time.time()
    except InvalidRequestError:
        yield note(about, f"no job {job!r} is known there, so its version cannot be asked for")
        return
    except ProtocolError as error:
        if "no method" not in str(error):
            raise
        yield warning(about, f"is older than this version, {__version__}", "run the same version everywhere")
        return
    if jobs.version == __version__:
        yield ok(about, f"runs version {jobs.version}, since {_ago(jobs.uptime)}; jobs: {len(jobs.jobs)}")
    else:
        yield warning(
            about,
            f"runs version {jobs.version}, but this is {__version__}",
            "run the same version everywhere",
        )
    yield from _clock(client, jobs, (asked, answered), about)
    yield from jobs_bound_by_network(ManagerClient.over(client), jobs.jobs, about)


def _clock(client: Client, jobs: Any, between: tuple[float, float], about: str) -> Iterator[Finding]:
    """Compare the manager's clock with this machine's, by the first job that shows it."""
    for one in jobs.jobs:
        apart = _apart(client, one, jobs.uptime, between)
        if apart is not None and abs(apart) > _CLOCKS_APART:
            yield warning(
                about,
                f"its clock is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} this machine's",
                "run an NTP service on both machines",
            )
            return
        if apart is not None:
            yield ok(about, "its clock and this machine's agree")
            return


def _apart(client: Client, job: Any, uptime: float, between: tuple[float, float]) -> float | None:
    """Return the seconds by which the manager's clock is ahead of ours; None if no job shows it.

    A job's first event has its time by the manager's clock, and the job's age says how long ago that was.
    Jobs that an earlier manager began are left out: their age counts from this manager's start.
    """
    if job.age > uptime - 1.0:
        return None
    events = ManagerClient.over(client).status(job.job).events
    if not events or events[0].number != 0:
        return None
    now_there = float(events[0].at + job.age)
    return now_there - sum(between) / 2


def _ago(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))
