"""Peers of the live page that send nothing, or too slowly, are disconnected, and do not keep others out."""

import contextlib
import http.client
import itertools
import socket

import pytest

from rpc.address import Address
from tests.evenpace.dashboard.live_pages import page_of
from tests.services import manager_service, serving

_PLACES = 102  # of a page for two viewers
_CHANGE = (
    "POST /api/jobs/a/control HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    "X-Evenpace: 1\r\nContent-Length: 16\r\n\r\n"
)
_FOREIGN = "POST / HTTP/1.1\r\nHost: elsewhere\r\nContent-Length: 16\r\n\r\n"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of two viewers that waits a second for a request."""
    options = ("--max-viewers", "2", "--request-timeout", "1")
    with (
        serving(manager_service()) as manager,
        page_of(tmp_path_factory.mktemp("page"), manager, *options) as page,
    ):
        yield page


def test_silent_peers_do_not_keep_viewers_out(page, wait_until):
    """Viewers get in soon even if peers that send hardly anything have taken all places."""
    with contextlib.ExitStack() as peers, page.events() as events:
        assert next(events)[0] == "page"
        slow = []

        def taken():
            for _ in range(_PLACES // 2):
                peers.enter_context(_connected(page))
                slow.append(peers.enter_context(_connected(page)))
            return _status(page) == 503

        wait_until(taken, "an end of the places")

        def let_in():
            for peer in slow:
                with contextlib.suppress(OSError):  # it has been closed
                    peer.send(b"X")
            return _status(page) == 200

        wait_until(let_in, "room for a viewer")
        with page.events() as others:
            assert next(others)[0] == "page"
        # The one that followed all the while is not cut off, though it has sent nothing since.
        beats = (name for name, _ in events if name == "beat")
        assert len(list(itertools.islice(beats, 4))) == 4  # one each second, at most


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "GET /healthz HT",
        "GET /healthz HTTP/1.1\r\nHost: {host}\r\n",
        "GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\nGET /heal",
        _CHANGE + "{{",
        _FOREIGN + "{{",
    ],
    ids=["nothing", "half a line", "half a head", "no more", "half the next", "half a change", "refused"],
)
def test_a_connection_without_a_whole_request_is_closed(page, sent):
    """A peer that has sent a part of a request gets the answers to whole ones, then an end."""
    with _connected(page) as peer:
        peer.sendall(sent.format(host=page.host).encode())
        answers = b""
        while data := peer.recv(2**16):
            answers += data
    assert answers.count(b"HTTP/1.1 200 OK") == sent.count("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n")
    assert "Traceback" not in page.log.read_text()


def _status(page):
    """Return the status of an answer; None if the page has closed the connection."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return page.ask("/healthz")[0]
    return None


def _connected(page):
    host, port = Address.parse(page.host)
    peer = socket.create_connection((host, port), 30)
    peer.settimeout(30)
    return peer
