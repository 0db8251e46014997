"""Pulls whose answers begin before their version is reached, at a live shard."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import idl
from idl.errors import NotYetError, RewoundError
from rpc.client import Client
from tests.ps.attempts import AttemptWorker
from tests.services import Raw, open_request, serving, shard_service
from tests.wire import LARGE, answer, framed

_ps = idl.parameter_server
HALF = LARGE * 4 // 2  # bytes of a gradient


@pytest.fixture
def pair(shard):
    """Return two workers of one job."""
    first = AttemptWorker(shard, LARGE)
    second = AttemptWorker(shard, LARGE, first.identity.job, worker="second")
    yield first, second
    for worker in (first, second):
        worker.close()


def early_pull(worker):
    """Make a call for the parameters that the next step leads to."""
    named = (worker.identity, worker.version + 1, None, worker.attempt, worker.instance)
    return _ps.PullRequest(*named, ahead=True)


class Reader(Raw):
    """A connection that pulls the next version of a worker's parameters early."""

    def __init__(self, worker, receive_buffer=None):
        super().__init__(worker.address, receive_buffer)
        self._head_of = worker.elements
        self.send(framed("pull", early_pull(worker)))

    def values(self, elements):
        """Return the next elements, or fewer where the connection ends."""
        if self._head_of:
            length = int.from_bytes(self.read(4), "big")
            self.read(length - 4 * self._head_of - 2)  # two bytes at the end are those of two structs
            self._head_of = 0
        data = self.read(4 * elements)
        return np.frombuffer(data[: len(data) // 4 * 4], np.float32)


class HalfPush(Raw):
    """A connection on which a worker has pushed half of its gradient."""

    def __init__(self, worker, **part):
        super().__init__(worker.address)
        data = framed("push", worker.push_request(**part), worker.gradient().data.cast("B"))
        self.rest = data[-HALF - 1 :]  # and the byte that ends the arguments
        self.send(data[: -HALF - 1])

    def complete(self):
        """Push the rest, and wait for the answer."""
        self.send(self.rest)
        assert self.read_frame()


def test_elements_come_once_all_have_pushed_them(pair):
    """Until the step, the version before is what others pull; the rest comes with the step."""
    first, second = pair
    with Reader(first) as reader, HalfPush(first, start=0, count=4) as push:
        second.push(start=4, count=4)
        early = reader.values(LARGE // 4)  # of half the elements; pieces of them may wait for more
        first.check()
        push.complete()
        rest = reader.values(LARGE - len(early))
        first.stepped()
        np.testing.assert_array_equal(np.concatenate([early, rest]), first.expected)
        first.check()


def test_a_call_that_has_them_waits_for_the_step_alone(pair):
    """It is answered without parameters, and notes that its caller has pushed."""
    first, second = pair
    has = {"has": True, "settled": True, "wait": 0.1}
    with Reader(first) as reader:
        first.push(start=0, count=4)
        request = _ps.PullRequest(first.identity, 1, None, first.attempt, first.instance, **has)
        deadline = time.monotonic() + 240
        first.client.send("pull", request, deadline=deadline)
        with pytest.raises(NotYetError, match="4 of the 8 samples"):
            first.client.receive(deadline=deadline)
        second.push(start=4, count=4)
        reply = first.client.call("pull", request)
        assert (reply.version, reply.parameters) == (1, b"")
        first.stepped()
        np.testing.assert_array_equal(reader.values(LARGE), first.expected)
    for worker in (first, second):
        worker.version = 1
    second.push(start=4, count=4)
    first.push(start=0, count=4)
    first.stepped()
    first.check()
    reply = first.client.call("pull", request)
    assert reply.version == 1, "that which the caller has, not the present one"


def test_a_fence_breaks_off_what_may_turn_out_otherwise(pair):
    """The new attempt begins with the parameters of before, and its step has what is pushed in it."""
    first, second = pair
    with Reader(first) as reader, HalfPush(first, start=0, count=4) as push:
        second.push(start=4, count=4)
        assert reader.values(LARGE // 4).any()
        first.fence(1)
        assert len(reader.values(LARGE)) < LARGE - LARGE // 4, "the connection ends"
        push.send(push.rest)
        first.rewind(1, 0)
        first.check()
    with pytest.raises(RewoundError):
        second.client.call("pull", early_pull(second), into=memoryview(bytearray(4 * LARGE)))
    with Reader(first) as reader:
        first.iterate()
        np.testing.assert_array_equal(reader.values(LARGE), first.expected)


@pytest.mark.slow
def test_who_reads_slowly_gets_one_version(shard):
    """Its memory is left alone, while others go on and pull early, also after a step that nobody did."""
    worker = AttemptWorker(shard, 4_000_000)
    with Reader(worker, receive_buffer=4096) as slow:
        for version in range(6):
            if version in (2, 3):
                worker.iterate()
                continue
            with Reader(worker) as reader, ThreadPoolExecutor() as thread:
                read = thread.submit(reader.values, worker.elements)
                worker.iterate()
                np.testing.assert_array_equal(read.result(120), worker.expected)
            if not version:
                expected = worker.expected.copy()
        np.testing.assert_array_equal(slow.values(worker.elements), expected)
    worker.close()


def test_a_shard_of_whole_steps_says_so_and_answers_who_asks_anyway():
    """Workers do not begin to pull there; an answer comes as a whole, and the step takes no memory."""
    service = shard_service(whole_steps=True)
    with serving(service) as address:
        worker = AttemptWorker(address, LARGE)
        identity = idl.common.Identity(worker.identity.job, "other", "x")
        assert worker.client.call("open", open_request(identity, LARGE)).ahead is False
        with Reader(worker) as reader:
            worker.iterate()
            np.testing.assert_array_equal(reader.values(LARGE), worker.expected)
        (job,) = service.jobs
        assert job.nbytes == 2 * 4 * LARGE
        assert job.shard.partial_step is None
        worker.close()


@pytest.mark.parametrize("mode", ["asp", "ssp"])
def test_a_pull_has_the_step_of_the_gradient_that_was_pushed_before_it(mode):
    """However soon it comes after the push, as by who does not wait for the push's answer."""
    with serving(shard_service()) as address:
        client = Client(_ps.ParameterServer, address, "shard", call_timeout=30)
        identity = idl.common.Identity("j/r", "w", "i")
        staleness = 2 if mode == "ssp" else None
        synchronisation = idl.common.Synchronisation(mode, staleness)
        client.call("open", open_request(identity, 3, synchronisation=synchronisation))
        numbers = np.ones(3, dtype=np.float32)
        initial = _ps.InitialiseRequest(identity, 0)
        client.call("initialise", initial, bulk=numbers.data.cast("B"))
        push = _ps.PushRequest(identity, idl.common.Assignment(0, 0, 0, 1, 1))
        pull = _ps.PullRequest(identity, -1)
        with Raw(address) as raw:
            raw.send(framed("push", push, numbers.data.cast("B")) + framed("pull", pull, sequence_id=2))
            assert answer(raw)[1].iteration == 0
            reply = answer(raw)[1]
        client.close()
    assert (reply.version, np.frombuffer(reply.parameters, np.float32).tolist()) == (1, [0, 0, 0])
