"""TLS on real sockets: which peers are accepted, the reasons of refusals, and replaced certificates."""

import contextlib
import datetime
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import idl
from idl.errors import (
    InvalidRequestError,
    ProtocolError,
    UnauthorisedError,
)
from rpc import certificates
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.limits import ServerLimits
from rpc.server import Security
from tests.services import MemberWorker, Raw, ShardWorker, manager_service, serving, shard_service
from tests.wire import framed

_manager = idl.batchsize_manager
HISTORY = _manager.HistoryRequest("j", 0, 1)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory) -> Path:
    """Make a folder with an authority, and certificates of a service and a worker."""
    folder = tmp_path_factory.mktemp("secrets")
    certificates.create_authority(folder, 10)
    certificates.issue(folder, "service", ["127.0.0.1", "localhost"], 10)
    certificates.issue(folder, "worker", [], 10)
    return folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Path:
    """Make a folder like `secrets`, with another authority."""
    folder = tmp_path_factory.mktemp("elsewhere")
    certificates.create_authority(folder, 10)
    certificates.issue(folder, "service", ["127.0.0.1"], 10)
    certificates.issue(folder, "worker", [], 10)
    return folder


@pytest.fixture
def service(secrets) -> Credentials:
    """Return a service's certificate."""
    return Credentials.of_folder(secrets / "service")


@pytest.fixture
def worker(secrets) -> Credentials:
    """Return a worker's certificate."""
    return Credentials.of_folder(secrets / "worker")


@pytest.fixture(scope="module")
def secure_manager(secrets) -> Iterator[Address]:
    """Start a manager that speaks TLS."""
    security = Security(Credentials.of_folder(secrets / "service"))
    with serving(manager_service(reconnect_grace=30.0), security=security) as address:
        yield address


@pytest.fixture(scope="module")
def secure_shard(secrets) -> Iterator[Address]:
    """Start a shard that speaks TLS."""
    security = Security(Credentials.of_folder(secrets / "service"))
    with serving(shard_service(), security=security) as address:
        yield address


def history(address: Address, credentials: Credentials | None) -> Client:
    """Return a client that has asked a manager, and was answered that there is no such job."""
    client = Client(
        _manager.BatchSizeManager,
        address,
        "manager",
        connect_timeout=60.0,
        call_timeout=60.0,
        credentials=credentials,
    )
    try:
        with pytest.raises(InvalidRequestError, match="no job"):
            client.call("history", HISTORY)
    except BaseException:
        client.close()
        raise
    return client


# -- who is let in


def test_members_and_shards_work_over_tls(secure_manager, secure_shard, worker):
    """A worker trains over TLS as it does without, gradients of many pieces included, and exactly."""
    member = MemberWorker(secure_manager, credentials=worker)
    pusher = ShardWorker(secure_shard, elements=200_001, credentials=worker)
    for _ in range(3):
        member.iterate()
        pusher.iterate()
    assert isinstance(member.client._socket, ssl.SSLSocket)
    assert member.client._socket.version() == "TLSv1.3"
    member.close()
    pusher.close()


def test_client_without_a_certificate(secure_manager, secrets, caplog, wait_until):
    """A client that trusts the service but shows no certificate is refused, and the service says so."""
    context = ssl.create_default_context(cafile=secrets / "ca.pem")
    connection = socket.create_connection(secure_manager, timeout=120)
    with context.wrap_socket(connection, server_hostname="127.0.0.1") as bare:
        bare.sendall(framed("history", HISTORY))
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            bare.recv(1)
    wait_until(lambda: "peer did not return a certificate" in caplog.text, "the reason in the log")


def test_client_of_another_authority(secure_manager, secrets, elsewhere, caplog, wait_until):
    """A client with a foreign certificate learns that it is not trusted, at once; so does the log."""
    foreign = Credentials(
        secrets / "ca.pem", elsewhere / "worker" / "certificate.pem", elsewhere / "worker" / "key.pem"
    )
    with pytest.raises(UnauthorisedError, match="it is of a certificate authority that the other side"):
        history(secure_manager, foreign)
    wait_until(lambda: "unable to get local issuer certificate" in caplog.text, "the reason in the log")


def test_service_of_another_authority(secrets, elsewhere, worker, caplog, wait_until):
    """A worker does not talk to a service whose certificate is foreign; both sides say why."""
    security = Security(Credentials.of_folder(elsewhere / "service"))
    with serving(manager_service(), security=security) as address:
        with pytest.raises(UnauthorisedError, match="cannot be trusted: self-signed certificate in"):
            history(address, worker)
        wait_until(lambda: "unknown ca" in caplog.text, "the reason in the log")


def test_host_names_are_checked(secrets, service, worker):
    """A service needs a certificate for servers, and for the name that it is called by."""
    certificates.issue(secrets, "other", ["10.1.2.3", "other.example.org"], 10)
    for name, pattern in (("other", "IP address mismatch"), ("worker", "purpose")):
        security = Security(Credentials.of_folder(secrets / name))
        with (
            serving(manager_service(), security=security) as address,
            pytest.raises(UnauthorisedError, match=pattern),
        ):
            history(address, worker)
    with serving(manager_service(), security=Security(service)) as address:
        history(Address("localhost", address.port), worker).close()


def test_certificates_that_have_expired(secrets, service, worker, monkeypatch, caplog, wait_until):
    """An expired certificate is refused by the other side, and both say that it has expired."""
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=5)
    authority = certificates._authority(secrets)
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "_now", lambda: long_ago)
        patched.setattr(certificates, "_authority", lambda folder: authority)
        late_service = certificates.issue(secrets, "late-service", ["127.0.0.1"], 1)
        late_worker = certificates.issue(secrets, "late-worker", [], 1)
    with serving(manager_service(), security=Security(late_service)) as address:
        with pytest.raises(UnauthorisedError, match="cannot be trusted: certificate has expired"):
            history(address, worker)
        wait_until(lambda: "certificate expired" in caplog.text, "the reason in the log")
    caplog.clear()
    with serving(manager_service(), security=Security(service)) as address:
        with pytest.raises(UnauthorisedError, match="side's certificate: it has expired"):
            history(address, late_worker)
        wait_until(lambda: "certificate has expired" in caplog.text, "the reason in the log")


def test_one_side_without_tls(secure_manager, manager, worker):
    """Where only one side speaks TLS, the client says which."""
    with pytest.raises(ProtocolError, match="speaks TLS: give your side certificates"):
        history(secure_manager, None)
    with pytest.raises(ProtocolError, match="does not speak TLS"):
        history(manager, worker)


# -- silent, slow and broken peers


def test_silent_tls_peers_hold_up_nobody(service, worker, wait_until):
    """Peers that stop during the handshake are cut off, and others are served meanwhile."""
    limits = ServerLimits(handshake_timeout=1.0)
    with serving(manager_service(reconnect_grace=30.0), limits, security=Security(service)) as address:
        hello = ssl.MemoryBIO()
        client = worker.contexts(server=False).current().wrap_bio(ssl.MemoryBIO(), hello)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        opening = hello.read()
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(Raw(address)) for _ in range(60)]
            for number, raw in enumerate(silent):
                raw.send(opening[: number * len(opening) // 60])
            member = MemberWorker(address, credentials=worker)
            for _ in range(20):
                member.iterate()
            for raw in silent:
                while raw.read(4096):  # what the handshake brought, and then the end
                    pass
            member.iterate()
            member.close()


# -- the client


# -- rotation


def replace(target: Credentials, source: Credentials, *names: str) -> None:
    """Replace files by another folder's, one after the other."""
    for name in names:
        getattr(target, name).write_bytes(getattr(source, name).read_bytes())


def peer_number(client: Client) -> str:
    """Return the serial number of the certificate that a client's peer has shown."""
    return client._socket.getpeercert()["serialNumber"].lower().lstrip("0")


def number(credentials: Credentials) -> str:
    """Return the serial number of a certificate."""
    return certificates.describe(credentials.certificate)[0].serial


def test_rotation_of_certificates(secrets, tmp_path, caplog):
    """New files are used from the next connection on, on both sides; while incomplete, the old ones are."""
    folder = tmp_path / "authority"
    certificates.create_authority(folder, 10)
    live = certificates.issue(folder, "live", ["127.0.0.1"], 10)
    ours = certificates.issue(folder, "worker", [], 10)
    spare = certificates.issue(folder, "spare", ["127.0.0.1"], 10)
    old = number(live)
    with serving(manager_service(reconnect_grace=30.0), security=Security(live)) as address:
        first = MemberWorker(address, credentials=ours)
        assert peer_number(first.client) == old
        replace(live, spare, "key")  # a half
        halfway = history(address, ours)
        assert peer_number(halfway) == old
        assert "they do not belong together; going on with what was there before" in caplog.text
        replace(live, spare, "certificate")
        after = history(address, ours)
        assert peer_number(after) == number(spare) != old
        # The client's, too, and a connection that was there goes on.
        replace(ours, certificates.issue(folder, "other", [], 10), "key")
        after.close()
        with pytest.raises(InvalidRequestError, match="no job"):
            after.call("history", HISTORY)
        first.iterate()
        # Another authority: both are trusted for a while, then the old one no more.
        certificates.create_authority(tmp_path / "next", 10)
        moved = certificates.issue(tmp_path / "next", "worker", [], 10)
        with pytest.raises(UnauthorisedError):
            history(address, Credentials(live.ca, moved.certificate, moved.key))
        live.ca.write_bytes((folder / "ca.pem").read_bytes() + (tmp_path / "next" / "ca.pem").read_bytes())
        moved.ca.write_bytes((folder / "ca.pem").read_bytes())
        history(address, moved).close()
        history(address, spare).close()
        live.ca.write_bytes((tmp_path / "next" / "ca.pem").read_bytes())
        history(address, moved).close()
        with pytest.raises(UnauthorisedError, match="does not trust"):
            history(address, spare)
        for client in (halfway, after):
            client.close()
        first.iterate()
        first.close()


@pytest.mark.parametrize("name", ["ca", "certificate", "key"])
def test_files_that_are_of_no_use(secrets, service, tmp_path, name):
    """A service or a client does not start with files that are missing or no PEM files."""
    broken = tmp_path / "broken.pem"
    files = {"ca": service.ca, "certificate": service.certificate, "key": service.key} | {name: broken}
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match=r"broken\.pem"):
            Client(_manager.BatchSizeManager, Address("h", 1), "manager", credentials=Credentials(**files))
        with (
            pytest.raises(InvalidRequestError, match=r"broken\.pem"),
            serving(manager_service(), security=Security(Credentials(**files))),
        ):
            pass
        broken.write_text("no certificate")
    with pytest.raises(InvalidRequestError, match="three files"):
        Credentials(**{name: broken})
