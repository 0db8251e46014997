"""Tokens: what a connection may do without one, with one, and with another job's; and listening addresses."""

import contextlib
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import idl
from evenpace.local.cluster import LocalCluster
from idl.errors import InvalidRequestError, ProtocolError, UnauthorisedError
from lab.observer import Observer
from rpc import certificates, tokens
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.limits import ServerLimits
from rpc.server import Security
from tests import EXAMPLES
from tests.evenpace.commands import invoke
from tests.rpc import apache_client
from tests.scripts import freeze_and_run
from tests.services import (
    MemberWorker,
    Raw,
    is_frozen,
    manager_service,
    serving,
    shard_service,
)
from tests.wire import answer, framed

_manager = idl.batchsize_manager
_ps = idl.parameter_server
Identity = idl.common.Identity


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
    """Make a key file with one key."""
    file = tmp_path_factory.mktemp("keys") / "tokens.key"
    tokens.write_new_key(file, add=False)
    return file


def issued(key: Path, job: str, expires: float = 0) -> str:
    """Issue a token."""
    return tokens.issue(tokens.TokenKeys(key), job, int(expires))


def of_job(key: Path, job: str, folder: Path) -> Credentials:
    """Make credentials with a job's token."""
    file = folder / f"{job}.token"
    tokens.write_secret(file, issued(key, job) + "\n")
    return Credentials(token=file)


@pytest.fixture(scope="module")
def guarded_manager(key) -> Iterator[Address]:
    """Start a manager that requires tokens."""
    with serving(manager_service(reconnect_grace=30.0), security=Security(token_keys=key)) as address:
        yield address


@pytest.fixture(scope="module")
def guarded_shard(key) -> Iterator[Address]:
    """Start a shard that requires tokens."""
    with serving(shard_service(), security=Security(token_keys=key)) as address:
        yield address


def authenticate(job: str, token: str, sequence_id: int = 1) -> bytes:
    """Call `authenticate`."""
    # Both services have it: the frame is the same.
    return framed("authenticate", idl.common.AuthenticateRequest(job, token), sequence_id=sequence_id)


# -- the tokens themselves


@settings(deadline=None)
@given(job=st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=200))
def test_a_token_is_good_for_its_job_and_time_alone(key, job):
    """A token is accepted for its job until it expires, and for no other job."""
    keys = tokens.TokenKeys(key)
    if "/" in job:
        with pytest.raises(InvalidRequestError, match="without '/'"):
            tokens.issue(keys, job, 0)
        return
    token = tokens.issue(keys, job, 1000)
    keys.check(token, job, 999.9)
    for other in (job + "x", job[:-1], job + "/", job + "\0"):
        with pytest.raises(UnauthorisedError, match="is for job"):
            keys.check(token, other, 0.0)
    with pytest.raises(UnauthorisedError, match="has expired"):
        keys.check(token, job, 1000.0)
    keys.check(tokens.issue(keys, job, 0), job, 1e12)


@settings(deadline=None)
@given(name=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=50) | st.just(tokens.ALL_JOBS))
def test_a_jobs_token_and_a_users_never_pass_for_each_other(key, name):
    """Of the same name and key: not as they are, nor with the other's beginning."""
    keys, (job, user) = tokens.TokenKeys(key), tokens.Purpose
    for purpose, other in ((job, user), (user, job)):
        text = tokens.issue(keys, name, 0, purpose)
        assert keys.verify(text, 0.0, purpose).name == name
        with pytest.raises(UnauthorisedError, match=f"is for a {purpose.whose}, and one for a {other.whose}"):
            keys.verify(text, 0.0, other)
        with pytest.raises(UnauthorisedError, match="not signed with a key"):
            keys.verify(text.replace(purpose, other), 0.0, other)


@settings(deadline=None)
@given(data=st.data())
def test_a_token_that_was_changed_is_none(key, data):
    """A token with any change is refused, and the refusal does not show it."""
    token = issued(key, "digits", 10**10)
    place = data.draw(st.integers(0, len(token) - 1))
    put = data.draw(st.text(st.characters(codec="utf-8"), max_size=3).filter(lambda t: t != token[place]))
    changed = token[:place] + put + token[place + 1 :]
    with pytest.raises(UnauthorisedError) as refusal:
        tokens.TokenKeys(key).check(changed, "digits", 0.0)
    assert token[10:30] not in str(refusal.value)


def test_a_secret_is_on_the_disk_before_it_replaces_another(tmp_path, disk_calls):
    """After a power failure there is the old file or the new one, complete."""
    file = tmp_path / "job.token"
    tokens.write_secret(file, "secret\n")
    synced, replaced, *_ = disk_calls
    assert synced == ("fsync", synced[1], len("secret\n"))
    assert replaced == ("replace", synced[1], str(file))


def test_keys_are_rotated(tmp_path, caplog):
    """A new key signs at once, an old one is valid until it is removed; a broken file changes nothing."""
    file = tmp_path / "tokens.key"
    tokens.write_new_key(file, add=False)
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidRequestError, match="is there already; --add"):
        tokens.write_new_key(file, add=False)
    keys = tokens.TokenKeys(file)
    old = tokens.issue(keys, "j", 0)
    tokens.write_new_key(file, add=True)
    assert file.stat().st_mode & 0o777 == 0o600
    new = tokens.issue(keys, "j", 0)
    for token in (old, new):
        keys.check(token, "j", 0.0)
    file.write_text("not a key\n")
    for token in (old, new):
        keys.check(token, "j", 0.0)
    assert caplog.text.count("going on with what was there before") == 1
    with pytest.raises(InvalidRequestError, match="1 to 100 lines"):
        tokens.TokenKeys(file)
    file.write_bytes(keys.current()[0].hex().encode())
    keys.check(new, "j", 0.0)
    with pytest.raises(UnauthorisedError, match="not signed with a key"):
        keys.check(old, "j", 0.0)


# -- on connections


@pytest.mark.parametrize("kind", ["expired", "foreign", "garbage", "empty", "missing"])
def test_no_valid_token(guarded_manager, key, tmp_path, kind, caplog):
    """The client raises the reason at once, which does not show the token; nor does a log."""
    caplog.set_level(logging.DEBUG)
    if kind == "foreign":
        key = tmp_path / "other.key"
        tokens.write_new_key(key, add=False)
    token = issued(key, "digits", time.time() - 1 if kind == "expired" else 0)
    text = {"garbage": "xyz", "empty": ""}.get(kind, token)
    file = tmp_path / "t"
    if kind != "missing":
        file.write_text(text)
    pattern = {
        "expired": "job 'digits' has expired",
        "foreign": "not signed with a key of this service",
        "missing": "No such file",
    }.get(kind, "not a token")
    client = Client(
        _manager.BatchSizeManager, guarded_manager, "manager", credentials=Credentials(token=file)
    )
    with pytest.raises((UnauthorisedError, InvalidRequestError), match=pattern):
        client.call("history", _manager.HistoryRequest("digits", 0, 1))
    client.close()
    assert not text or len(text) < 10 or text[12:40] not in caplog.text


@pytest.mark.parametrize("name", ["anna", tokens.OPERATOR])
def test_a_token_of_a_shared_cluster_opens_no_job(guarded_manager, key, name):
    """Not the one that has the user's name either, nor all for an operator."""
    token = tokens.issue(tokens.TokenKeys(key), name, 0, tokens.Purpose.CLUSTER)
    with Raw(guarded_manager) as raw:
        raw.send(authenticate(name, token))
        with pytest.raises(UnauthorisedError, match="is for a user, and one for a job is needed"):
            answer(raw)


def test_one_connection_is_for_one_job(guarded_manager, key):
    """A connection cannot change to another job, even with its token; the same token may be sent again."""
    with Raw(guarded_manager) as raw:
        for job in ("a", "a"):
            raw.send(authenticate(job, issued(key, job)))
            assert answer(raw)[1].job == job
        raw.send(authenticate("b", issued(key, "b")))
        with pytest.raises(InvalidRequestError, match="is for job 'a' already"):
            answer(raw)
        raw.send(framed("history", _manager.HistoryRequest("b", 0, 1)))
        with pytest.raises(UnauthorisedError):
            answer(raw)


def test_a_stock_client_can_authenticate(guarded_manager, key):
    """Apache Thrift's own client calls `authenticate`, and gets refusals as declared exceptions."""
    client = apache_client.ApacheClient(*guarded_manager)
    leave = apache_client.LeaveRequest(apache_client.Identity("stock", "a", "a"))
    with pytest.raises(apache_client.Unauthorised, match="asks for a job's token"):
        client.leave(leave)
    shown = apache_client.AuthenticateRequest("stock", issued(key, "stock"))
    assert client.authenticate(shown).job == "stock"
    with pytest.raises(apache_client.NotMember, match="no job 'stock'"):
        client.leave(leave)
    client.close()


@pytest.mark.parametrize("now", [None, "", "evenpace1.", "cut short"])
def test_a_token_file_that_is_being_replaced(guarded_manager, key, tmp_path, now, caplog):
    """A worker whose token file is gone or not whole goes on with the last valid token, and says so once."""
    credentials = of_job(key, "rotated", tmp_path)
    member = MemberWorker(guarded_manager, "rotated", credentials)
    other = member.client.twin()
    valid = credentials.token.read_text()
    credentials.token.unlink()
    if now is not None:
        credentials.token.write_text(valid[:-10] if now == "cut short" else now)
    for _ in range(2):
        member.client.close()  # a new connection begins with the token
        member.iterate()
    other.call("history", _manager.HistoryRequest("rotated", 0, 1))
    complaints = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(complaints) == 1
    assert f"{str(credentials.token)!r}" in complaints[0]

    credentials.token.write_text(issued(key, "elsewhere"))  # whole again, and another
    with pytest.raises(UnauthorisedError, match="is for job 'elsewhere'"):
        member.client.twin().call("history", _manager.HistoryRequest("rotated", 0, 1))
    credentials.token.write_text(valid)
    member.close()
    other.close()


@pytest.mark.parametrize("service", ["manager", "ps"])
def test_health_needs_no_token(guarded_manager, guarded_shard, service):
    """`evenpace health` needs no token at a service that requires tokens."""
    address = str(guarded_manager if service == "manager" else guarded_shard)
    result = invoke("health", f"--{service}", address, "--timeout", "120")
    assert result.exit_code == 0, result.output


# -- strangers


def test_strangers_send_little(guarded_shard, key):
    """Before authentication long messages are refused, however they begin."""
    for data in (
        framed("authenticate", idl.common.AuthenticateRequest("j", "x" * 5000)),
        framed("initialise", _ps.InitialiseRequest(Identity("j/r", "a", "a"), 0), bytes(10_000)),
    ):
        with Raw(guarded_shard) as raw:
            raw.send(data[:100])
            with pytest.raises(ProtocolError, match="before authentication"):
                answer(raw)
            assert raw.is_closed()


def test_strangers_call_seldom(guarded_manager, key):
    """A peer that tries several tokens is cut off after a few."""
    with Raw(guarded_manager) as raw:
        raw.send(b"".join(authenticate("j", "evenpace1.a.b") for _ in range(9)))
        for _ in range(8):
            with pytest.raises(UnauthorisedError):
                answer(raw)
        with pytest.raises(ProtocolError, match="9 calls without authentication"):
            answer(raw)
        assert raw.is_closed()


def test_strangers_do_not_stay(key, tmp_path, wait_until):
    """Calls without a token do not extend the time to authenticate."""
    limits = ServerLimits(handshake_timeout=3.0)
    with serving(manager_service(), limits, security=Security(token_keys=key)) as address:
        member = MemberWorker(address, "digits", of_job(key, "digits", tmp_path))
        call = framed("history", _manager.HistoryRequest("j", 0, 1))
        with contextlib.ExitStack() as stack:

            def called() -> Raw | None:
                """Call, or return None where this thread was stopped before it could."""
                raw = stack.enter_context(Raw(address))
                raw.send(call)
                try:
                    answer(raw)
                except UnauthorisedError:
                    return raw
                except ProtocolError as error:
                    if "within 3 s of connecting" not in str(error):
                        raise
                return None

            raw = wait_until(called, "a refusal of the call")
            with pytest.raises(ProtocolError, match="within 3 s of connecting"):
                answer(raw)
            assert raw.is_closed()
        member.iterate()
        member.close()


# -- where services listen


@pytest.mark.slow
def test_nothing_listens_beyond_loopback_unprotected():
    """A service that other machines can reach needs TLS and tokens, or --insecure."""
    done = subprocess.run(
        [sys.executable, "-m", "evenpace", "manager", "--listen", "0.0.0.0:0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 1
    assert "others could reach 0.0.0.0:0 without TLS and tokens: give --tls and --token-key" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.1", False)],
)
def test_what_counts_as_loopback(key, host, allowed):
    """It is loopback if only this machine can reach it; for others, the error says what is missing."""
    address, credentials = Address(host, 0), Credentials.of_folder(key.parent)
    assert address.is_loopback == allowed
    for safe in (Security(insecure=True), Security(credentials, key)):
        safe.check_address(address)
    for security, missing in (
        (Security(), "TLS and tokens"),
        (Security(credentials), "tokens"),
        (Security(token_keys=key), "TLS"),
    ):
        refused = pytest.raises(InvalidRequestError, match=f"others could reach .* without {missing}: ")
        with contextlib.nullcontext() if allowed else refused:
            security.check_address(address)


# -- a whole job


@pytest.mark.slow
def test_a_job_with_tls_and_tokens(tmp_path, wait_until):
    """A job trains over TLS with tokens, and no process shows a secret."""
    folder = tmp_path / "secrets"
    certificates.create_authority(folder, 10)
    certificates.issue(folder, "all", ["127.0.0.1"], 10)
    key = folder / "tokens.key"
    tokens.write_new_key(key, add=False)
    shown = of_job(key, "default", folder)
    credentials = Credentials.of_folder(folder / "all", shown.token)
    secret = [
        *(line for line in (folder / "all" / "key.pem").read_text().splitlines() if "-" not in line),
        key.read_text().strip(),
        credentials.read_token(),
    ]
    script = EXAMPLES / "train_digits_evenpace.py"
    with LocalCluster(
        tmp_path / "logs",
        workers=2,
        report_timeout=600.0,
        manager_options=("--silence", "600"),
        credentials=credentials,
        token_key=key,
    ) as cluster:
        cluster.start_worker("w0", script)
        # One stops for a while, so that the job is still there when it is looked at.
        frozen = cluster.start_worker("w1", Path(freeze_and_run.__file__), ["10:report:0", str(script)]).popen
        wait_until(lambda: is_frozen(frozen), "the freeze")
        observer = Observer(cluster.manager, cluster.shard_addresses, credentials=credentials)
        wait_until(lambda: observer.poll() and observer.iterations, "iterations")
        with pytest.raises(ProtocolError, match="give your side certificates"):
            Observer(cluster.manager, ()).poll()
        processes = [p.popen.pid for p in cluster.processes]
        lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in processes]
        lines += [Path(f"/proc/{pid}/environ").read_text() for pid in processes]
        assert all(lines)
        frozen.send_signal(signal.SIGCONT)
        wait_until(lambda: not cluster.check(), "the end of training")
        observer.close()
    logs = [file.read_text() for file in (tmp_path / "logs").iterdir()]
    assert len(logs) == 4
    for text in (*lines, *logs, repr(credentials), repr(Security(credentials, key))):
        assert not any(part in text for part in secret)
