"""Limits on real sockets: one peer reaches each of them, while another is served undisturbed."""

import contextlib
import select
import struct
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import idl
from idl.errors import InvalidRequestError, ProtocolError, UnauthorisedError, UnavailableError
from rpc.address import Address
from rpc.limits import Admission, Rate, ServerLimits
from rpc.server import Security
from rpc.tokens import write_new_key
from tests.services import MemberWorker, Raw, ShardWorker, manager_service, serving, shard_service
from tests.state_machines import driven
from tests.wire import answer, framed, pull_frame

_manager = idl.batchsize_manager
_ps = idl.parameter_server


@contextlib.contextmanager
def honest(**limits: float) -> Iterator[tuple[Address, MemberWorker]]:
    """Start a manager with the limits, and a member that must come to no harm."""
    with serving(manager_service(reconnect_grace=30.0), ServerLimits(**limits)) as address:
        worker = MemberWorker(address)
        worker.iterate()
        yield address, worker
        worker.iterate()
        worker.close()


def history(worker: MemberWorker, sequence_id: int = 1) -> bytes:
    """Call a method that a manager answers at once."""
    return framed("history", _manager.HistoryRequest(worker.identity.job, 0, 1), sequence_id=sequence_id)


@pytest.mark.parametrize("name", list(ServerLimits.__dataclass_fields__))
def test_limits_are_above_zero(name):
    """A limit of 0 is refused."""
    allowed = "at least 0" if name == "bulk_bytes" else "(above 0|at least 1)"
    for value in (-1, float("nan")) if name == "bulk_bytes" else (0, -1, float("nan")):
        with pytest.raises(InvalidRequestError, match=f"{name} .*: must be {allowed}"):
            ServerLimits(**{name: value})


def test_connections_of_one_address():
    """One address cannot take all connections, and can make new ones once it has closed some."""
    with honest(address_connections=3) as (address, worker), contextlib.ExitStack() as stack:
        for _ in range(2):
            raw = stack.enter_context(Raw(address))
            raw.send(history(worker))
            answer(raw)
        with Raw(address) as raw:
            with pytest.raises(ProtocolError, match=r"3 connections are open from 127\.0\.0\.1 already"):
                answer(raw)
            assert raw.is_closed()
        worker.iterate()
        with Raw(address, source="127.0.0.2") as raw:
            raw.send(history(worker))
            assert answer(raw)[1].run == worker.run


def test_strangers_make_room_for_newcomers(tmp_path, wait_until):
    """Peers without authentication are cut off when more come, the oldest first."""
    key = tmp_path / "keys"
    write_new_key(key, add=False)
    limits = ServerLimits(strangers=5, handshake_timeout=240.0)
    with (
        serving(manager_service(), limits, security=Security(token_keys=key)) as address,
        contextlib.ExitStack() as stack,
    ):
        silent = [stack.enter_context(Raw(address)) for _ in range(5)]
        for round_ in range(3):
            other = stack.enter_context(Raw(address, source=f"127.0.0.{round_ + 2}"))
            other.send(framed("history", _manager.HistoryRequest("j", 0, 1)))
            with pytest.raises(UnauthorisedError):
                answer(other)
            assert silent[round_].is_closed()
        assert not select.select([raw.socket for raw in silent[3:]], [], [], 0)[0]


def outcome(raw: Raw) -> str:
    """Return the outcome of a call: "answered", or the refusal."""
    try:
        answer(raw)
    except (UnavailableError, ProtocolError) as error:
        return str(error)
    return "answered"


def test_calls_per_second():
    """A peer that calls too often is refused as unavailable, then cut off if it continues."""
    with honest(calls_per_second=50.0, calls_in_flight=1000) as (address, worker), Raw(address) as raw:
        raw.send(b"".join(history(worker, i) for i in range(400)))
        outcomes = [outcome(raw)]
        while "in spite of refusals" not in outcomes[-1]:
            outcomes.append(outcome(raw))
        assert raw.is_closed()
        assert 50 <= outcomes.count("answered") <= 300
        assert sum("more than 50 calls per second on one connection" in text for text in outcomes) >= 50
        worker.iterate()


def test_calls_per_second_of_gradients():
    """A gradient that is pushed too soon is read and refused, and nothing of it is added."""
    limits = ServerLimits(calls_per_second=5.0)
    with serving(shard_service(), limits) as address:
        worker = ShardWorker(address, 50_000)
        with Raw(address) as raw:
            for i in range(7):
                raw.send(framed("push", worker.push_request(0, 4), worker.gradient(), sequence_id=i))
            outcomes = []
            for _ in range(7):
                try:
                    outcomes.append(answer(raw)[1].iteration)
                except UnavailableError:
                    outcomes.append(None)
        assert outcomes[0] == 0
        worker.push(start=4, count=4)
        worker.stepped()
        worker.check()
        worker.close()


def beginning(size: int, sent: int) -> bytes:
    """Return the first bytes of a call of `history` whose frame claims a given length."""
    head = struct.pack(">iHHi", size, 0x8001, 1, 7) + b"history" + struct.pack(">i", 1)
    return head + struct.pack(">bhbhi", 12, 1, 11, 1, size) + bytes(sent)


def test_memory_of_unfinished_messages(wait_until):
    """Incomplete messages take memory up to one limit for all; small calls are always taken."""
    limits = {"unfinished_bytes": 200_000, "handshake_timeout": 240.0, "request_timeout": 240.0}
    with honest(**limits) as (address, worker), contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw(address)) for _ in range(8)]
        for raw in raws:
            raw.send(beginning(400_000, 60_000))
        worker.iterate()
        refused = set()

        def some_refused() -> bool:
            for raw in select.select([raw.socket for raw in raws], [], [], 0)[0]:
                refused.add(raw)
            return len(refused) >= 5

        wait_until(some_refused, "refusals")
        for raw in raws:
            if raw.socket in refused:
                with pytest.raises(ProtocolError, match="holds too much of unfinished messages"):
                    answer(raw)
        assert len(refused) < 8


def test_memory_of_messages_is_given_back():
    """Memory of long messages is released when they are done, or their connections have ended."""
    with serving(shard_service(), ServerLimits(unfinished_bytes=300_000)) as address:
        worker = ShardWorker(address)
        tensors = [_ps.Tensor(f"layer-{i}", [10, 10], "float32") for i in range(2000)]
        for i in range(12):
            with Raw(address) as raw:
                identity = idl.common.Identity(f"j{i}", "a", "a")
                group = _ps.ParameterGroup(10, {"lr": 1.0})
                request = _ps.OpenRequest(identity, "float32", "sgd", [group], None, tensors)
                data = framed("open", request)
                assert 60_000 < len(data) < 200_000
                raw.send(data if i % 2 else data[:-1])
                if i % 2:
                    assert not answer(raw)[1].initialised
        worker.iterate()
        worker.close()


def test_answers_that_nobody_takes(wait_until):
    """A peer that keeps calling and takes no answer is not read any more; its calls are answered."""
    with serving(shard_service(), ServerLimits(unsent_bytes=10_000)) as address:
        worker = ShardWorker(address, 2**18)  # an answer of 1 MiB
        with Raw(address, receive_buffer=2**16) as raw:
            count = 60
            for i in range(count):
                raw.send(pull_frame(worker, -1, i))
            worker.iterate()
            for i in range(count):
                header, reply = answer(raw)
                assert header.sequence_id == i
                assert len(reply.parameters) == 2**20
        worker.iterate()
        worker.close()


# -- the counts


def test_a_rate_over_time():
    """A second's worth of calls at once, then the rate; a debt is at most two seconds' worth."""
    rate = Rate(10.0, 0.0)
    assert [rate.take(0.0) for _ in range(3)] == [9.0, 8.0, 7.0]
    assert rate.take(100.0) == 9.0
    for _ in range(1000):
        left = rate.take(100.0)
    assert left == -20.0
    assert rate.take(102.5) == pytest.approx(4.0)


class Doors(RuleBasedStateMachine):
    """A state machine of peers that connect from three addresses, authenticate, and leave in any order."""

    LIMITS = ServerLimits(connections=8, address_connections=5, strangers=3)

    def __init__(self) -> None:
        super().__init__()
        self.admission: Admission[int] = Admission(self.LIMITS)
        self.hosts: dict[int, str] = {}
        self.strangers: list[int] = []
        self.next = 0

    @rule(host=st.sampled_from("abc"))
    def enter(self, host):
        """A peer is refused exactly at a limit; too many unauthenticated ones cost the busiest address."""
        peer = self.next
        self.next += 1
        mine = sum(other == host for other in self.hosts.values())
        full = len(self.hosts) >= 8 or mine >= 5
        assert bool(self.admission.enter(peer, host)) == full
        if full:
            return
        self.hosts[peer] = host
        self.strangers.append(peer)
        gone = self.admission.excess_peer()
        assert (gone is not None) == (len(self.strangers) > 3)
        if gone is not None:
            crowd = [p for p in self.strangers if self.hosts[p] == self.hosts[gone]]
            assert gone == crowd[0]
            assert all(sum(self.hosts[p] == host for p in self.strangers) <= len(crowd) for host in "abc")
            self.go(gone)

    @rule(data=st.data())
    def trust(self, data):
        """An authenticated peer counts as such, even when it is trusted again."""
        if self.hosts:
            peer = data.draw(st.sampled_from(sorted(self.hosts)))
            self.admission.trust(peer)
            if peer in self.strangers:
                self.strangers.remove(peer)

    @rule(data=st.data())
    def leave(self, data):
        """A peer that leaves, even twice, makes room."""
        if self.hosts:
            peer = data.draw(st.sampled_from(sorted(self.hosts)))
            self.go(peer)
            self.admission.leave(peer)

    def go(self, peer):
        """Let one peer leave."""
        self.admission.leave(peer)
        del self.hosts[peer]
        if peer in self.strangers:
            self.strangers.remove(peer)

    @invariant()
    def counts_agree(self):
        """There are never more unauthenticated peers than allowed."""
        assert len(self.strangers) <= 3
        assert self.admission.excess_peer() is None


Doors.TestCase.settings = driven(60, 30)
TestDoors = pytest.mark.machine(Doors.TestCase)
