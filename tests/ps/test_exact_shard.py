"""A shard that sums in fixed point: however gradients arrive, its parameters are the same to the last bit."""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import idl
from idl.errors import InvalidRequestError
from idl.exact_sums import add_to, mean_of
from idl.layout import Group, Layout
from idl.synchronisation import Synchronisation
from idl.translation import wire_synchronisation
from ps.exact_shard import ExactShard
from rpc.client import Client
from tests.ps.tensors import values
from tests.ps.test_shard_slices import ACTION, ELEMENTS, Redone
from tests.services import open_request, serving, shard_service

_ps = idl.parameter_server
LAYOUT = Layout(
    "float32",
    "sgd",
    (Group(ELEMENTS - 2, {"lr": 0.5, "momentum": 0.9}), Group(2, {}, statistics=True)),
)
EXACT = wire_synchronisation(Synchronisation(exact=True))


class RedoneExactly(Redone):
    """A batch whose slices bring sums in fixed point of their samples."""

    def gradient(self, samples):
        """Return the sums over samples, (elements,), in an order of their own."""
        sums = np.zeros(ELEMENTS, dtype=np.int64)
        for sample in samples.flip(0).numpy():
            add_to(sums, sample, 1, len(self.samples), LAYOUT)
        return torch.from_numpy(sums)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_pushes_breaks_and_pieces_leave_no_trace(data):
    """Parameters have the bits of a step with the whole batch's mean, whatever happened to the pushes."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), label="seed"))
    shard = ExactShard(LAYOUT)
    first = torch.randn(ELEMENTS, generator=generator)
    shard.initialise(first.clone(), 0)
    expected = first[:-2].clone().requires_grad_()
    reference = torch.optim.SGD([expected], lr=0.5, momentum=0.9)
    start = 0
    for _ in range(2):
        counts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4), label="counts")
        samples = torch.randn(sum(counts), ELEMENTS, generator=generator)
        batch = RedoneExactly(shard, samples, start, counts, says_batch_start=True)
        batch.play(data.draw(st.lists(ACTION, max_size=40), label="actions"))
        assert shard.complete
        shard.step()
        batch.push_stale()
        sums = np.zeros(ELEMENTS, dtype=np.int64)
        for sample in samples.numpy():
            add_to(sums, sample, 1, len(samples), LAYOUT)
        mean = torch.from_numpy(mean_of(sums, len(samples), LAYOUT)).float()
        expected.grad = mean[:-2]
        reference.step()
        assert values(shard).tolist() == [*expected.tolist(), *mean[-2:].tolist()]
        start += len(samples)


# -- on the wire


class ExactWorker:
    """A worker of a job of one float32 parameter group at a shard, that pushes sums.

    Args:
        address: The shard's.
        elements: Parameters, which begin as zeros.
    """

    def __init__(self, address, name, elements):
        self.elements = elements
        self.identity = idl.common.Identity("job/run", name, name)
        self.client = Client(_ps.ParameterServer, address, "shard", call_timeout=120)
        self.client.call("open", open_request(self.identity, elements, synchronisation=EXACT))
        zeros = np.zeros(elements, dtype=np.float32)
        self.client.call("initialise", _ps.InitialiseRequest(self.identity, 0), bulk=zeros.data.cast("B"))

    def request(self, start, count, total, version=0):
        """Make the request of a push."""
        part = idl.common.Assignment(version, 0, start, count, total)
        return _ps.PushRequest(self.identity, part)

    def push(self, start, samples, total, version=0):
        """Push the sums over samples, (count, elements) from `start` on; return their bytes."""
        sums = sums_of(samples, total)
        self.client.call("push", self.request(start, len(samples), total, version), bulk=sums.data.cast("B"))

    def pull(self, version):
        """Pull the parameters."""
        parameters = np.empty(self.elements, dtype=np.float32)
        self.client.call("pull", _ps.PullRequest(self.identity, version), into=parameters.data.cast("B"))
        return parameters


def sums_of(samples, total):
    """Sum samples in fixed point, each with a weight of 1."""
    sums = np.zeros(samples.shape[1], dtype=np.int64)
    for sample in samples:
        add_to(sums, sample, 1, total, plain(samples.shape[1]))
    return sums


def plain(elements):
    """Make the layout of a job of `ExactWorker`."""
    return Layout("float32", "sgd", (Group(elements, {"lr": 1.0}),))


@pytest.fixture
def workers():
    """Make workers, which are closed in the end."""
    with contextlib.ExitStack() as stack:

        def make(*arguments):
            worker = ExactWorker(*arguments)
            stack.callback(worker.client.close)
            return worker

        yield make


def test_a_shard_sums_exactly_again_after_it_was_started_again(workers, tmp_path):
    """A checkpoint says that sums are exact: the next gradient is one of integers."""
    samples = np.random.default_rng(2).standard_normal((4, 5)).astype(np.float32)
    with serving(shard_service(state=tmp_path, checkpoint_every=1)) as address:
        worker = workers(address, "w0", 5)
        worker.push(0, samples, 4)
        once = worker.pull(1)
    with serving(shard_service(state=tmp_path, checkpoint_every=1)) as address:
        worker = workers(address, "w0", 5)
        worker.client.call("fence", _ps.FenceRequest(worker.identity, 1))
        worker.client.call("rewind", _ps.RewindRequest(worker.identity, 1, 1))
        request = worker.request(4, 4, 4, 1)
        request.assignment.attempt = 1
        worker.client.call("push", request, bulk=sums_of(samples, 4).data.cast("B"))
        twice = np.empty(5, dtype=np.float32)
        asked = _ps.PullRequest(worker.identity, 2, attempt=1)
        worker.client.call("pull", asked, into=twice.data.cast("B"))
    assert np.array_equal(twice, once + once)


def test_gradients_that_are_no_sums_are_refused(workers):
    """A push of float32 has half the bytes; a worker that was told of no exact sums cannot open the job."""
    with serving(shard_service()) as address:
        worker = workers(address, "w0", 5)
        with pytest.raises(InvalidRequestError, match=r"20 bytes, but .* 5 elements of int64 take 40"):
            worker.client.call("push", worker.request(0, 4, 4), bulk=memoryview(bytes(20)))
        other = idl.common.Identity("job/run", "w1", "w1")
        with pytest.raises(InvalidRequestError, match=r"runs with .*exact=True.*'w1' wants .*exact=False"):
            worker.client.call("open", open_request(other, 5))
