"""The client against services that are unreachable, slow or wrong."""

import random
import threading
import time

import numpy as np
import pytest
from thriftpy2.thrift import TMessageType

import idl
from idl.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EvenpaceError,
    NotMemberError,
    ProtocolError,
)
from rpc import client as client_module
from rpc import codec
from rpc.address import Address
from rpc.client import Client
from rpc.limits import ServerLimits
from tests.rpc.scripted import answering, scripted
from tests.services import Raw, ShardWorker, serving, shard_service
from tests.wire import LARGE, STOP, message

_manager = idl.batchsize_manager
_ps = idl.parameter_server


def history_client(address: Address, **timeouts: float) -> Client:
    """Make a client of a manager."""
    return Client(_manager.BatchSizeManager, address, "manager", **timeouts)


HISTORY = _manager.HistoryRequest("j", 0, 1)


def test_a_repeated_call_draws_nothing_from_the_scripts_generator():
    """A worker's script has the same random numbers, whether its services could be reached at once or not."""
    with scripted(lambda raw: (raw.read_frame(), raw.socket.close()), answering("right")) as address:
        state = random.getstate()
        client = history_client(address)
        assert client.call("history", HISTORY, timeout=120).run == "right"
        assert client.connections == 2
        client.close()
    with pytest.raises(ConnectionLostError):
        history_client(address, connect_timeout=0.2).connect()
    assert random.getstate() == state


def test_late_answer_is_never_taken_for_another():
    """After a deadline the next call uses a new connection, which the late answer cannot reach."""
    late = threading.Event()
    first: list[Raw] = []

    def silent(raw: Raw) -> None:
        first.append(raw)
        raw.read_frame()

    def second(raw: Raw) -> None:
        answer_late = _manager.BatchSizeManager.history_result(success=_manager.History(run="late"))
        for sequence_id in (1, 2):
            header = codec.Header("history", TMessageType.REPLY, sequence_id)
            first[0].send(codec.frame(codec.encode(header, answer_late)))
        late.set()
        answering("right")(raw)

    with scripted(silent, second) as address:
        client = history_client(address)
        client.send("history", HISTORY, deadline=time.monotonic() + 120)
        with pytest.raises(DeadlineExceededError, match=f"at {address} did not answer history"):
            client.receive(deadline=time.monotonic() + 0.3)
        assert client.call("history", HISTORY, timeout=120).run == "right"
        assert late.is_set()
        client.close()


@pytest.mark.parametrize(
    ("script", "pattern"),
    [
        (answering("", skew=1), "answered history 2, not history 1"),
        (answering("", method="leave"), "answered leave 1, not history 1"),
        (lambda raw: (raw.read_frame(), raw.send(b"HTTP/1.1 400 Bad Request\r\n")), "is it evenpace's"),
        (lambda raw: (raw.read_frame(), raw.send(bytes(8))), "a frame of 0 bytes"),
        (lambda raw: (raw.read_frame(), raw.send(message("history", STOP, 2))), "gave no result"),
        (lambda raw: (raw.read_frame(), raw.send(message("history", STOP, 1))), "answered history 1"),
    ],
)
def test_answer_that_is_none_is_refused(script, pattern):
    """An answer to another call, or no valid answer, is an error, and the connection is not used again."""
    with scripted(script, answering("right")) as address:
        client = history_client(address)
        with pytest.raises(ProtocolError, match=pattern):
            client.call("history", HISTORY, timeout=120)
        assert client.call("history", HISTORY, timeout=120).run == "right"
        client.close()


def test_a_peer_that_vanished_is_given_up(monkeypatch, wait_until):
    """A connection that stays silent without being closed is broken, however far the deadline is."""
    monkeypatch.setattr(client_module, "_WAIT_SECONDS", 0.1)
    closed, errors = threading.Event(), []

    def vanished(raw: Raw) -> None:
        raw.read_frame()
        assert raw.is_closed()
        closed.set()

    def call() -> None:
        client.send("history", HISTORY, deadline=time.monotonic() + 240)
        try:
            client.receive(deadline=time.monotonic() + 240)
        except EvenpaceError as error:
            errors.append(error)

    with scripted(vanished) as address:
        client = history_client(address, silence=0.1)
        thread = threading.Thread(target=call)
        thread.start()
        try:
            wait_until(closed.is_set, "the end of the connection", seconds=30)
        finally:
            client.abandon(NotMemberError("the test is over"))
            thread.join(120)
        (error,) = errors
        assert isinstance(error, ConnectionLostError)
        assert "did not answer history for 0.1 s" in str(error)


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

        def push_once():
            deadline, large = time.monotonic() + 60, memoryview(bytes(2**25))
            worker.client.send("push", worker.push_request(), bulk=large, deadline=deadline)
            worker.client.receive(deadline=deadline)

        with pytest.raises((ConnectionLostError, ProtocolError), match="are allowed"):
            push_once()
        worker.iterate()
        worker.close()


def test_abandoned_client_fails_at_once_and_for_good():
    """A call that waits for its answer ends when another thread abandons the client; later calls, too."""
    reached = threading.Event()

    def silent(raw: Raw) -> None:
        raw.read_frame()
        reached.set()
        raw.read_frame()

    with scripted(silent) as address:
        client = history_client(address)
        errors: list[Exception] = []

        def call() -> None:
            try:
                client.call("history", HISTORY)
            except NotMemberError as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        assert reached.wait(120)
        gone = NotMemberError("taken out")
        client.abandon(gone)
        thread.join(120)
        assert errors == [gone]
        with pytest.raises(NotMemberError, match="taken out"):
            client.call("history", HISTORY)


def test_a_call_whose_connection_another_thread_closes_fails_or_is_made_again():
    """Between two parts of a message the connection may be gone, or have been closed by the other thread."""
    with scripted(lambda raw: raw.read_frame(), answering("b")) as address:
        client = history_client(address)
        client.send("history", HISTORY, deadline=time.monotonic() + 120)
        client.close()
        with pytest.raises(ConnectionLostError, match="closed meanwhile"):
            client.receive(deadline=time.monotonic() + 120)
        assert client.call("history", HISTORY).run == "b"
        client.close()
