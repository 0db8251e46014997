"""Attempts at a shard: fenced, and begun again at a version; gradients of earlier ones do not count."""

import threading

import numpy as np
import pytest

import idl
from idl.errors import InvalidRequestError, NotYetError, RewoundError, UnavailableError
from tests.ps.attempts import AttemptWorker
from tests.services import Raw
from tests.wire import LARGE, answer, framed

_ps = idl.parameter_server


@pytest.fixture
def worker(shard):
    """Return a worker that has taken a step in the first attempt."""
    worker = AttemptWorker(shard, LARGE)
    worker.iterate()
    yield worker
    worker.close()


def test_a_batch_that_is_complete_is_stepped_before_another_attempt(shard):
    """A complete batch survives a fence before its step: other shards may have taken theirs."""
    worker = AttemptWorker(shard, 100)
    fence = framed("fence", _ps.FenceRequest(worker.identity, 1), sequence_id=2)
    with Raw(worker.address) as raw:
        raw.send(framed("push", worker.push_request(), worker.gradient()) + fence)  # arrives as one
        assert answer(raw)[1].iteration == 0
        assert answer(raw)[1].version == 1
    worker.stepped()
    worker.rewind(1, 1)
    worker.check()
    worker.iterate()
    worker.close()


@pytest.fixture
def pair(shard):
    """Return two workers of one job that has other shards, too."""
    first = AttemptWorker(shard, 100, shared=True)
    second = AttemptWorker(shard, 100, first.identity.job, shared=True, worker="second")
    yield first, second
    for worker in (first, second):
        worker.close()


def at_version(worker):
    """Return the shard's version."""
    into = np.empty(worker.elements, dtype=np.float32)
    return worker.client.call("pull", _ps.PullRequest(worker.identity, -1), into=into.data.cast("B")).version


def test_with_other_shards_a_step_waits_until_all_have_asked_for_it(pair):
    """A step waits until each worker that pushed has asked for it, and so has pushed to every shard."""
    first, second = pair
    first.push(start=0, count=4)
    second.push(start=4, count=4)
    assert at_version(first) == 0
    with pytest.raises(NotYetError):
        first.pull_once(1, wait=0.2)
    assert at_version(first) == 0
    second.pull(1)
    assert at_version(first) == 1


def test_with_other_shards_a_step_is_taken_once_somebody_says_that_all_have_pushed(pair):
    """A worker that got the next assignment may say for all that they have pushed; one may have left."""
    first, second = pair
    first.push(start=0, count=4)
    with pytest.raises(NotYetError):
        first.pull_once(1, wait=0.2, settled=True)  # this one is ahead of what it can know
    second.push(start=4, count=4)
    first.pull_once(1, settled=True)
    first.stepped()
    first.check()


@pytest.mark.parametrize("version", [0, 1])
def test_what_is_complete_at_a_fence_may_be_stepped_with_or_not(pair, version):
    """A batch complete at a fence is stepped with or not, as the rewind's version says."""
    first, second = pair
    gradient = first.gradient()
    first.push(start=0, count=4)
    second.push(start=4, count=4)
    for attempt in (1, 2):
        reply = first.fence(attempt)
        assert (reply.version, reply.complete) == (0, True)
    first.rewind(2, version)
    if not version:  # it has dropped the gradients
        first.push(start=0, count=8)
        first.pull_once(1, settled=True)
    assert np.array_equal(first.pull(1), -gradient)


def test_an_attempt_of_a_manager_that_has_lost_it_is_not_the_next_ones(worker):
    """The number stands for one of them alone, whoever has fenced the shard before without naming any."""
    worker.fence(3)
    for _ in range(2):
        worker.fence(3, "a")
    worker.rewind(3, 1)
    worker.fence(3)
    with pytest.raises(RewoundError, match="for an earlier process of the manager") as refused:
        worker.fence(3, "b")
    assert refused.value.attempt == 4
    worker.fence(4, "b")


def test_another_attempt_or_instance_is_refused(worker):
    """Calls of an earlier attempt, and of who relies on another process, fail and name the attempt."""
    worker.fence(3)
    calls = [worker.push, lambda: worker.pull(-1)]
    for call in (*calls, lambda: worker.fence(2), lambda: worker.rewind(2, 1)):
        with pytest.raises(RewoundError, match="is in 3") as refused:
            call()
        assert refused.value.attempt == 3
    worker.rewind(3, 1)
    instance, worker.instance = worker.instance, "another"
    for call in calls:
        with pytest.raises(RewoundError, match="started again") as refused:
            call()
        assert refused.value.attempt == 3
    worker.instance = instance
    worker.iterate()


def test_who_waits_is_told_of_the_new_attempt(worker, wait_until):
    """A pull that waits for a step fails when another attempt begins."""
    other, told = worker.client.twin(), []

    def wait():
        try:
            worker.pull(2, other)
        except RewoundError as error:
            told.append(error.attempt)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.2)  # it may come before the pull or after it: the answer is the same
    worker.fence(1)
    thread.join(30)
    assert told == [1]
    other.close()


def test_between_fence_and_rewind_nobody_goes_on(worker):
    """Until an attempt's first version is known, its pulls wait, and its pushes are put off."""
    worker.fence(1)
    newcomer = AttemptWorker(worker.address, LARGE, worker.identity.job)
    assert newcomer.attempt == 1
    with Raw(worker.address) as raw:
        raw.send(framed("push", newcomer.push_request(), worker.gradient()))
        with pytest.raises(UnavailableError, match="from which version attempt 1"):
            answer(raw)
    pulled = []
    thread = threading.Thread(target=lambda: pulled.append(newcomer.pull(0)))
    thread.start()
    thread.join(0.2)
    assert not pulled
    worker.rewind(1, 1)
    thread.join(30)
    np.testing.assert_array_equal(pulled[0], worker.expected)
    newcomer.close()
    worker.iterate()


def test_a_push_that_is_under_way_does_not_outlive_its_attempt(worker):
    """A push begun before the fence is dropped, and its worker gets an error at its end."""
    data = framed("push", worker.push_request(0, 4), worker.gradient())
    with Raw(worker.address) as raw:
        raw.send(data[: len(data) - 100])
        worker.pull(1)  # by now the first bytes have been taken
        worker.fence(1)
        worker.rewind(1, 1)
        worker.push(start=4, count=4)
        raw.send(data[len(data) - 100 :])
        with pytest.raises(RewoundError, match=r"attempt 0, .* is in 1"):
            answer(raw)
    worker.push(start=0, count=4)
    worker.stepped()
    worker.check()


def test_parameters_belong_to_an_attempt(shard):
    """First parameters begin the attempt of the worker that sends them, unless a later one has begun."""
    worker = AttemptWorker(shard, initialise=False)
    assert worker.attempt == 0
    assert not worker.fence(2).initialised
    with pytest.raises(InvalidRequestError, match="no parameters yet"):
        worker.rewind(2, 0)
    with pytest.raises(RewoundError, match=r"attempt 1, .* is in 2"):
        worker.initialise(1)
    assert worker.initialise(3)
    assert not worker.initialise(3)
    opened = worker.open()
    assert (opened.initialised, opened.attempt) == (True, 3)
    worker.rewind(3, 0)
    worker.iterate()
    worker.close()
