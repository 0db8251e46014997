"""Services at several places, or where a file says: which is dialled, what is waited for, what is refused."""

import math
import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import idl
from idl.errors import ConnectionLostError, InvalidRequestError, UnauthorisedError, UnavailableError
from rpc import certificates
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.places import Places, parse_where
from rpc.server import Security
from tests.rpc.scripted import answering, scripted
from tests.services import address_of_our_own, manager_service, serving

_manager = idl.batchsize_manager
HISTORY = _manager.HistoryRequest("j", 0, 1)
JOBS = _manager.JobsRequest()


def client_of(where, **options):
    """Make a client of a manager that would wait for ever for one that is silent."""
    return Client(_manager.BatchSizeManager, where, "manager", **{"silence": math.inf} | options)


def write(file, text):
    """Rewrite a file as a controller does: by renaming another one."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


def never(raw):
    """Take a call, and say nothing."""
    raw.read_frame()


HOSTS = st.sampled_from(["127.0.0.1", "::1", "a", "manager-0.manager.jobs.svc"]) | st.ip_addresses().map(str)
ADDRESSES = st.builds(Address, HOSTS, st.integers(0, 65535))


@given(st.lists(ADDRESSES, min_size=1, max_size=5, unique=True))
def test_a_list_is_read_as_it_is_written(addresses):
    """A list of places has the same addresses after it was written and read."""
    places = Places(tuple(addresses))
    assert Places.parse(str(places)) == places
    assert Places.of(parse_where(str(places))) == places


@pytest.mark.parametrize("text", ["", "@", "a", "a:1,", "a:1;2", "a:1,a:1", "@a\0b", "a:1,@file"])
def test_a_text_without_places_is_refused(text):
    """A mistake is an error that has the text's wrong part, and what is allowed."""
    with pytest.raises(InvalidRequestError, match=r"give |comes twice"):
        Places.parse(text)


def test_a_place_that_takes_calls_and_is_silent_is_given_up_for_the_next():
    """After the silence, the next place's service is asked, in spite of the first's accepting connections."""
    with scripted(never) as frozen, serving(manager_service()) as address:
        client = client_of(Places((frozen, address)), silence=0.3)
        assert not client.call("jobs", JOBS).jobs
        assert client.connections == 2
        client.close()


@pytest.mark.parametrize("text", [None, "", "nonsense", "\0", b"\xff", "a:1,a:1"])
def test_a_file_without_places_is_waited_for(tmp_path, wait_until, text):
    """A file that is not there yet, or is of no use, is waited for like a service; the error names it."""
    file = tmp_path / "places"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UnavailableError, match=f"file of places '{file}'"):
        Places(file=file).now()
    impatient = client_of(Places(file=file), connect_timeout=0.2)
    with pytest.raises(ConnectionLostError, match=f"cannot reach the manager at @{file} .*'{file}': "):
        impatient.connect()
    client = client_of(Places(file=file), connect_timeout=240.0)
    answers = []
    asks = threading.Thread(target=lambda: answers.append(client.call("jobs", JOBS, timeout=240.0)))
    asks.start()
    with serving(manager_service()) as address:
        write(file, f"{address}\n")
        asks.join(240)
        client.close()
    assert answers


def test_a_service_that_is_frozen_is_left_once_the_file_names_another_place(tmp_path, wait_until):
    """A silent connection is broken off within seconds, though no time-out says so."""
    file, asked = tmp_path / "places", threading.Event()

    def freeze(raw):
        raw.read_frame()
        asked.set()

    with scripted(freeze) as old, scripted(answering("new")) as new:
        write(file, str(old))
        client = client_of(Places(file=file))
        answers = []
        asks = threading.Thread(target=lambda: answers.append(client.call("history", HISTORY, timeout=240.0)))
        asks.start()
        assert asked.wait(120)
        write(file, str(new))
        asks.join(240)
        assert client.where == f"{new}, by @{file}"
        client.close()
    assert [answer.run for answer in answers] == ["new"]


def test_a_name_is_resolved_at_each_attempt(monkeypatch):
    """A service whose name has another address, with the same port, is found there."""
    where, resolve = ["127.0.0.1"], socket.getaddrinfo

    def resolved(host, *arguments, **options):
        return resolve(where[0] if host == "moves.test" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    port = address_of_our_own().port
    client = client_of(Address("moves.test", port))
    for host in ("127.0.0.1", "127.0.0.2"):
        with serving(manager_service(), address=Address(host, port)):
            where[0] = host
            assert not client.call("jobs", JOBS).jobs
    assert client.connections == 2
    client.close()


def test_a_token_goes_to_no_place_in_the_clear(tmp_path, monkeypatch):
    """Each place of a list is checked at once, and each that a file has, before it is dialled."""
    credentials = Credentials(token_text="token")
    far = Address("192.0.2.1", 1)
    with pytest.raises(InvalidRequestError, match=r"a token would go to 192\.0\.2\.1:1 in the clear"):
        client_of(Places((Address("127.0.0.1", 1), far)), credentials=credentials)
    file = tmp_path / "places"
    client = client_of(Places(file=file), credentials=credentials)
    write(file, str(far))
    with pytest.raises(InvalidRequestError, match=r"a token would go to 192\.0\.2\.1:1 in the clear"):
        client.connect()


def test_a_token_does_not_follow_a_name_that_was_resolved_elsewhere_since(monkeypatch):
    """A name that is this machine's when it is checked, and another's when it is dialled, gets no token."""
    got = []

    class Elsewhere(socket.socket):
        def getpeername(self):
            return "192.0.2.1", 1

        def send(self, data):
            got.append(bytes(data))
            return super().send(data)

    with scripted(lambda raw: raw.read(1)) as address:
        monkeypatch.setattr(socket, "socket", Elsewhere)
        client = client_of(address, credentials=Credentials(token_text="token"))
        with pytest.raises(InvalidRequestError, match=r"a token would go to 192\.0\.2\.1:1 in the clear"):
            client.connect()
    assert not got


def test_the_certificate_must_be_for_the_host_that_is_dialled(tmp_path):
    """At its new place, a service is checked by the name of that place."""
    certificates.create_authority(tmp_path, 10)
    certificates.issue(tmp_path, "service", ["localhost"], 10)
    certificates.issue(tmp_path, "worker", [], 10)
    security = Security(credentials=Credentials.of_folder(tmp_path / "service"))
    file = tmp_path / "places"
    with serving(manager_service(), security=security) as address:
        client = client_of(Places(file=file), credentials=Credentials.of_folder(tmp_path / "worker"))
        write(file, f"localhost:{address.port}")
        assert not client.call("jobs", JOBS).jobs
        client.close()
        write(file, f"127.0.0.1:{address.port}")
        with pytest.raises(UnauthorisedError, match=f"at {address}, by @{file} cannot be trusted"):
            client.connect()
