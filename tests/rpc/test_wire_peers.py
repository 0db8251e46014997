"""Peers that break off, read slowly, stay silent or come in crowds; and services that stop."""

import contextlib
import itertools
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thriftpy2.thrift import TApplicationException

import idl
from idl.errors import InvalidRequestError, NotYetError, ProtocolError, UnavailableError
from ps import service as ps_service
from rpc import codec
from rpc.address import Address
from rpc.limits import ServerLimits
from rpc.service import Call
from tests.services import (
    MemberWorker,
    Raw,
    ShardWorker,
    ends_with,
    join_request,
    manager_process,
    manager_service,
    serving,
    shard_service,
    signalled_process,
)
from tests.wire import LARGE, answer, field, framed, i64, identity_field, message, pull_frame, request

_manager = idl.batchsize_manager
_ps = idl.parameter_server
Identity = idl.common.Identity


# -- gradients that come twice, in part, or not at all


def test_push_again_after_the_step_is_acknowledged(shard, pusher):
    """A push whose answer got lost may be sent again after the step: it is acknowledged, and not added."""
    data = framed("push", pusher.push_request(), pusher.gradient())
    pusher.iterate()
    with Raw(shard) as raw:
        raw.send(data)
        assert answer(raw)[1].iteration == 1
    pusher.check()
    pusher.iterate()


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("cut", [3, 4096, 2**18 + 1000, -1])
def test_push_that_broke_off_is_completed_by_another_connection(shard, pusher, cut, is_last):
    """After a connection closed in the middle of a gradient, the same slice completes it exactly."""
    worker = ShardWorker(shard, LARGE)
    if is_last:
        worker.push(start=4, count=4)
    with Raw(shard) as raw:
        raw.send(framed("push", worker.push_request(0, 4), worker.gradient())[:cut])
        pusher.iterate()  # others go on meanwhile
    if not is_last:
        worker.push(start=4, count=4)
    worker.push(start=0, count=4)
    worker.stepped()
    worker.check()
    worker.iterate()
    worker.close()


def test_refused_large_push_leaves_the_connection_usable(shard, pusher):
    """A large gradient that is refused is read away, and what follows in the same segment is answered."""
    data = framed("push", pusher.push_request(), bytes(2**20), 1)
    with Raw(shard) as raw:
        raw.send(data + data + pull_frame(pusher, -1, 3))
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="1048576 bytes"):
                answer(raw)
        header, reply = answer(raw)
        assert (header.sequence_id, reply.parameters) == (3, pusher.expected.tobytes())
    pusher.iterate()


# -- peers that read slowly

MANY = 6 * 2**20  # elements; 24 MiB do not fit into any socket's buffers


@pytest.fixture(scope="module")
def heavy(shard) -> Iterator[ShardWorker]:
    """The worker of a job whose parameters are many."""
    worker = ShardWorker(shard, MANY)
    yield worker
    worker.close()


def test_slow_reader_gets_one_version(shard, heavy):
    """A pull that is still on its way when steps are taken brings the version that it began with."""
    version, expected = heavy.version, heavy.expected.tobytes()
    with Raw(shard, receive_buffer=2**16) as raw:
        raw.send(pull_frame(heavy, -1))
        length = raw.read(4)  # the answer has begun
        heavy.iterate()
        half = codec.LENGTH.unpack(length)[0] // 2
        data = raw.read(half)
        heavy.iterate()
        data += raw.read(codec.LENGTH.unpack(length)[0] - half)
    reply = codec.decode(data, _ps.ParameterServer.pull_result).success
    assert reply.version == version
    assert reply.parameters == expected


def test_peer_that_does_not_read_its_answer(caplog, wait_until):
    """A peer that takes nothing of its answer for the request deadline is cut off."""
    with serving(shard_service(), ServerLimits(request_timeout=0.3)) as address:
        worker = ShardWorker(address, MANY)
        with Raw(address, receive_buffer=2**16) as raw:
            raw.send(pull_frame(worker, -1))
            wait_until(lambda: "did not take its answer within 0.3 s" in caplog.text, "the cut")
            assert len(raw.read(4 * MANY)) < 4 * MANY
        worker.iterate()
        worker.close()


class Growing:
    """A service that gives 4 MiB more of an answer whenever the deadlines have been looked at."""

    definition, bulk_methods = _ps.ParameterServer, frozenset()
    part, parts = memoryview(bytes(2**22)), 12

    def __init__(self) -> None:
        self._calls: dict[Call, int] = {}

    def handle(self, call: Call) -> None:
        """Begin to answer a pull; the kernel asks for more each time that it has sent a little."""
        call.peer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        call.begin_reply(_ps.PullReply(call.request.identity, 0, 0.0, b""), self.parts * self.part.nbytes)
        self._calls[call] = self.parts

    def tick(self, now: float) -> None:
        """Go on with the answers."""
        for call, left in list(self._calls.items()):
            call.send(self.part)
            self._calls[call] = left - 1
            if left == 1:
                del self._calls[call]

    def disconnected(self, peer: object) -> None:
        """Forget what nobody waits for."""
        self._calls = {call: left for call, left in self._calls.items() if call.peer is not peer}

    def stop(self) -> None:
        """Do nothing."""


def test_who_takes_an_answer_more_slowly_than_it_is_made_is_not_cut_off(wait_until):
    """It takes some all the time, though what it has not taken grows for longer than the deadline."""
    seconds = 1.5
    frame = message("pull", request(identity_field(Identity("j", "w", "i")), field(2, 10, i64(0))))

    def comes() -> bool:
        """Return whether the whole answer arrives; it need not to a reader that was stopped itself."""
        with Raw(address, receive_buffer=2**16) as raw:
            raw.send(frame)
            (length,) = codec.LENGTH.unpack(raw.read(4))
            begun, taken, left = time.monotonic(), [time.monotonic()], length
            while left:
                slowly = time.monotonic() < begun + 2.0 * seconds
                count = min(left, 2**15 if slowly else 2**22)
                whole = len(raw.read(count)) == count
                taken.append(time.monotonic())
                if not whole:
                    break
                left -= count
                if slowly:
                    time.sleep(0.02)
        assert whole or max(end - begin for begin, end in itertools.pairwise(taken)) > seconds / 3
        return whole

    with serving(Growing(), ServerLimits(request_timeout=seconds)) as address:
        wait_until(comes, "the answer to one that keeps reading")


# -- deadlines and limits


def refused_after_deadline(address: Address, *pieces: bytes) -> str:
    """Return the reason for which a server ends a connection, which sends the pieces until then."""
    with Raw(address) as raw:
        for piece in itertools.cycle(pieces or (b"",)):
            if piece:
                raw.send(piece)
            if select.select([raw.socket], [], [], 0.02 if pieces else 20)[0]:
                break
        with pytest.raises(ProtocolError) as refusal:
            answer(raw)
        assert raw.is_closed()
    return str(refusal.value)


def called_in_time(address: Address, stack: contextlib.ExitStack, *calls: bytes) -> tuple[Raw, Any]:
    """Return a connection and its first answer; a new one if this thread was stopped before its call."""
    while True:
        raw = stack.enter_context(Raw(address))
        raw.send(b"".join(calls))
        try:
            return raw, answer(raw)[1]
        except ProtocolError as error:
            if "no call came" not in str(error):
                raise


@pytest.fixture
def impatient(request) -> Iterator[tuple[Address, MemberWorker]]:
    """Start a manager with the deadlines that the test gives, and a member that must come to no harm."""
    with serving(manager_service(reconnect_grace=30.0), ServerLimits(**request.param)) as address:
        worker = MemberWorker(address)
        worker.iterate()
        yield address, worker
        worker.iterate()
        worker.close()


@pytest.mark.parametrize("impatient", [{"handshake_timeout": 0.3}], indirect=True)
def test_a_connection_is_refused_as_the_contract_says(impatient):
    """The refusal answers no call; after how long it comes by default is in the .thrift files."""
    with Raw(impatient[0]) as raw:
        header, _ = codec.scan(data := raw.read_frame(), len(data))
        assert (header.method, header.sequence_id) == ("", 0)
        assert codec.decode(data, TApplicationException).type == codec.TIMEOUT == 10
    contract = (Path(idl.__file__).parent / "common.thrift").read_text()
    assert f"within {ServerLimits().handshake_timeout:g} seconds of connecting" in contract


@pytest.mark.parametrize("impatient", [{"idle_timeout": 0.3}], indirect=True)
def test_idle_peer(impatient):
    """A peer that has called, and is then silent for the idle deadline, gets the reason."""
    address, worker = impatient
    call = framed("history", _manager.HistoryRequest(worker.identity.job, 0, 1))
    with contextlib.ExitStack() as stack:
        raw, history = called_in_time(address, stack, call)
        assert history.run == worker.run
        with pytest.raises(ProtocolError, match=r"no call came for 0\.3 s"):
            answer(raw)
        assert raw.is_closed()


def test_waiting_for_a_barrier_is_not_idle():
    """A peer whose call is being answered may be silent for any time."""
    limits = ServerLimits(idle_timeout=2.0, handshake_timeout=2.0, request_timeout=0.3)
    joins = [framed("join", join_request(Identity("j", name, name))) for name in "ab"]
    # This second call shows that the first is waiting: calls on a connection are taken in order.
    look = framed("history", _manager.HistoryRequest("j", 0, 1), sequence_id=2)
    with serving(manager_service(workers=2), limits) as address, contextlib.ExitStack() as stack:
        one, history = called_in_time(address, stack, joins[0], look)
        assert history.run
        assert refused_after_deadline(address) == "no call came within 2 s of connecting"
        _, joined = called_in_time(address, stack, joins[1])
        assert joined.assignment.count + answer(one)[1].assignment.count == MemberWorker.BATCH


def test_a_pull_that_does_not_say_how_long_to_wait_ends(monkeypatch):
    """After ten minutes, here a moment, with what is missing."""
    monkeypatch.setattr(ps_service, "_PULL_SECONDS", 0.1)
    with serving(shard_service()) as address:
        worker = ShardWorker(address)
        missing = [
            "no worker has pushed",
            "of 4 of the 8 samples of iteration 0 has not been pushed; good has",
        ]
        for said in missing:
            deadline = time.monotonic() + 240
            worker.client.send("pull", _ps.PullRequest(worker.identity, 1), deadline=deadline)
            with pytest.raises(NotYetError, match=f"version 1 is not there yet: .*{said}"):
                worker.client.receive(deadline=deadline)
            worker.push(start=0, count=4)
        worker.close()


def test_too_many_calls_in_flight():
    """A call above the limit on one connection ends it; calls that are answered do not count."""
    with serving(shard_service(), ServerLimits(calls_in_flight=4)) as address:
        worker = ShardWorker(address)
        with Raw(address) as raw:
            raw.send(b"".join(pull_frame(worker, -1, i) for i in range(10)))
            assert [answer(raw)[0].sequence_id for _ in range(10)] == list(range(10))
            raw.send(b"".join(pull_frame(worker, 1, i) for i in range(5)))
            with pytest.raises(ProtocolError, match="4 calls are unanswered"):
                answer(raw)
            assert raw.is_closed()
        worker.iterate()
        worker.close()


# -- processes


def test_second_manager_on_the_port():
    """A second manager on a port is refused with the address, and the first goes on."""
    with manager_process() as address:
        worker = MemberWorker(address)
        second = subprocess.run(
            [sys.executable, "-m", "evenpace", "manager", "--listen", str(address)],
            check=False,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert second.returncode != 0
        assert f"{address} is in use" in second.stderr
        assert "Traceback" not in second.stderr
        worker.iterate()
        worker.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_clean_shutdown_of_the_manager(number):
    """A manager that is told to stop refuses calls that wait, then exits with status 0."""
    with signalled_process("manager", "--workers", "2") as (popen, address), Raw(address) as raw:
        identity = Identity("j", "a", "a")
        # The second call shows that the first is waiting: calls on a connection are taken in order.
        raw.send(framed("join", join_request(identity)))
        raw.send(framed("history", _manager.HistoryRequest("j", 0, 1), sequence_id=2))
        assert answer(raw)[1].run
        assert ends_with(popen, number) == 0
        with pytest.raises(UnavailableError, match="shutting down"):
            answer(raw)
        assert raw.is_closed()


def test_clean_shutdown_of_a_shard():
    """A shard that is told to stop refuses calls that wait, then exits with status 0."""
    with signalled_process("ps") as (popen, address):
        worker = ShardWorker(address)
        with Raw(address) as raw:
            raw.send(pull_frame(worker, 1) + pull_frame(worker, -1, 2))
            assert answer(raw)[0].sequence_id == 2
            assert ends_with(popen, signal.SIGTERM) == 0
            with pytest.raises(UnavailableError, match="shutting down"):
                answer(raw)
        worker.close()
