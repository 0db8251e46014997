"""Shards where something fails half-way, as for lack of memory: no trace of it is in a job that goes on."""

import contextlib
import time

import numpy as np
import pytest
import torch

import idl
from idl.errors import InvalidRequestError, RewoundError
from idl.layout import Group, Layout
from ps.asynchronous_shard import AsynchronousShard
from ps.exact_shard import ExactShard
from ps.shard import Shard
from rpc.client import Client
from tests.ps.attempts import AttemptWorker
from tests.ps.tensors import push, slice_of, tensor, values
from tests.ps.test_early_pull import HalfPush, Reader
from tests.services import serving, shard_service
from tests.wire import LARGE, answer

_ps = idl.parameter_server


@pytest.fixture
def fail(monkeypatch):
    """Return a function that lets a method's next calls fail, after they have done their work."""

    def set_up(owner, name, times=1):
        real, left = getattr(owner, name), [None] * times

        def failing(*arguments, **options):
            result = real(*arguments, **options)
            if left:
                left.pop()
                raise RuntimeError("can't allocate memory")
            return result

        monkeypatch.setattr(owner, name, failing)

    return set_up


def start_again(worker, attempt):
    """Go back to the first version in another attempt."""
    worker.fence(attempt)
    worker.rewind(attempt, 0)
    worker.expected = np.zeros(worker.elements, dtype=np.float32)


def push_and_pull(worker, version, **part):
    """Push, and pull what that leads to; the step may fail before all is pushed."""
    worker.push(**part)
    worker.pull(version)


@pytest.mark.parametrize("in_part", [False, True], ids=["whole", "in part"])
def test_a_job_whose_step_fails_goes_back_to_its_checkpoint(tmp_path, wait_until, fail, in_part):
    """The step is not taken again on what is half changed, and half a step is not gone on with."""
    with serving(shard_service(state=tmp_path)) as address:
        worker = AttemptWorker(address, LARGE)
        wait_until(lambda: list(tmp_path.glob("*/*0.checkpoint")), "the checkpoint")
        worker.iterate()
        with Reader(worker) if in_part else contextlib.nullcontext():
            fail(torch.optim.SGD, "step")
            with pytest.raises(RewoundError):
                push_and_pull(worker, 2)
        start_again(worker, 1)
        for _ in range(3):
            worker.iterate()
        worker.close()


def pushed_and_pulled(worker):
    """Push, and return the error with which the pull ends that waits for the step."""
    request = _ps.PullRequest(worker.identity, worker.version + 1, None, worker.attempt, worker.instance)
    with contextlib.closing(Client(_ps.ParameterServer, worker.address, "shard")) as waiting:
        deadline = time.monotonic() + 60
        waiting.call("state", _ps.StateRequest(worker.identity))
        waiting.send("pull", request, deadline=deadline)
        worker.push()
        with pytest.raises((InvalidRequestError, RewoundError), match=r"at version 0 .*allocate") as raised:
            waiting.receive(deadline=deadline)
    return raised.value


def test_a_step_that_fails_again_ends_the_job(tmp_path, wait_until, fail):
    """Workers are sent back once; then the error says what fails, and where to look."""
    with serving(shard_service(state=tmp_path)) as address:
        worker = AttemptWorker(address)
        wait_until(lambda: list(tmp_path.glob("*/*0.checkpoint")), "the checkpoint")
        fail(torch.optim.SGD, "step", times=2)
        assert isinstance(pushed_and_pulled(worker), RewoundError)
        start_again(worker, 1)
        again = pushed_and_pulled(worker)
        assert isinstance(again, InvalidRequestError)
        assert "again" in str(again)
        worker.close()


def test_a_step_that_fails_without_checkpoints_ends_the_job(shard, fail):
    """The error says what would have kept the job."""
    worker = AttemptWorker(shard)
    fail(torch.optim.SGD, "step")
    assert "--state DIR" in str(pushed_and_pulled(worker))
    with pytest.raises(RewoundError, match="has not opened"):
        worker.pull(0)
    worker.close()


def test_a_push_under_way_is_not_answered_by_the_job_that_came_back(tmp_path, wait_until, fail):
    """A stock client's, too, which names neither attempt nor process."""
    with serving(shard_service(state=tmp_path)) as address:
        worker = AttemptWorker(address, LARGE)
        wait_until(lambda: list(tmp_path.glob("*/*0.checkpoint")), "the checkpoint")
        second = AttemptWorker(address, LARGE, worker.identity.job, worker="second")
        worker.attempt = worker.instance = None
        with Reader(second), HalfPush(worker, start=0, count=4) as half:
            fail(torch.optim.SGD, "step")
            with pytest.raises(RewoundError):
                push_and_pull(second, 1, start=4, count=4)
            second.open()  # once the job has come back
            half.send(half.rest)
            with pytest.raises(RewoundError, match="since the push began"):
                answer(half)
        worker.close()
        second.close()


def test_a_checkpoint_that_cannot_be_stepped_to_keeps_no_other_job_from_its_own(tmp_path, fail):
    """Where a shard ends with complete gradients, it takes their steps first; one of them fails."""
    with serving(shard_service(state=tmp_path)) as address:
        workers = [AttemptWorker(address, shared=True) for _ in range(2)]
        for worker in workers:
            worker.push()
        fail(torch.optim.SGD, "step")
    assert sorted(path.name for path in tmp_path.glob("*/*1.checkpoint"))


LAYOUT = Layout("float64", "sgd", (Group(4, {"lr": 1.0}),))


@pytest.mark.parametrize("make", [Shard, ExactShard], ids=["sums", "exact"])
def test_a_piece_that_cannot_be_added_does_not_count(make, fail):
    """It is added once it comes again, after its connection has ended."""
    shard = make(LAYOUT)
    shard.initialise(torch.zeros(4, dtype=torch.float64), 0)
    piece = torch.ones(2).to(shard.pushed_dtype)
    contribution = shard.begin(slice_of(0, 0, 8))
    shard.add(contribution, piece)
    fail(shard._meter, "squares")
    with pytest.raises(RuntimeError):
        shard.add(contribution, piece)
    shard.interrupt(contribution)
    again = shard.begin(slice_of(0, 0, 8))
    assert again.first == 2
    shard.add(again, piece)
    shard.step()
    assert len(set(values(shard).tolist())) == 1


def test_a_slot_that_cannot_be_copied_is_copied_when_it_is_asked_for_again(fail):
    """What was half copied is not given out."""
    shard = Shard(Layout("float64", "sgd", (Group(4, {"lr": 1.0, "momentum": 0.9}),)))
    shard.initialise(torch.zeros(4, dtype=torch.float64), 0)
    push(shard, 0, 8, 8, tensor(1, 2, 3, 4))
    shard.step()
    fail(torch, "zeros_like")
    with pytest.raises(RuntimeError):
        shard.slot("momentum_buffer")
    assert torch.frombuffer(shard.slot("momentum_buffer"), dtype=torch.float64).tolist() == [1, 2, 3, 4]


def test_options_that_are_refused_at_a_start_leave_those_of_before():
    """A worker's gradient that waits for its step is stepped with the options that it had."""
    adam = {"lr": 0.5}
    shard = AsynchronousShard(Layout("float64", "adam", (Group(4, adam),)))
    shard.initialise(torch.zeros(4, dtype=torch.float64), 0)
    shard.start_worker("w", (Group(4, adam),))
    push(shard, 0, 8, 8, tensor(1, 1, 1, 1), worker="w")
    with pytest.raises(InvalidRequestError, match="amsgrad"):
        shard.start_worker("w", (Group(4, adam | {"amsgrad": 1.0}),))
    shard.step()
    assert values(shard).tolist() == pytest.approx([-0.5] * 4)
