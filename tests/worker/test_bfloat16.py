"""Gradients that are rounded to bfloat16 before they are pushed, and added up in the job's own type."""

import contextlib
import itertools
import uuid

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import idl
from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from idl.plan import Assignment
from idl.synchronisation import Synchronisation
from idl.translation import wire_assignment
from rpc.address import Address
from rpc.client import Client
from tests.services import serving, shard_service
from worker.bfloat16 import round_to_bfloat16
from worker.config import SessionConfig
from worker.shard_clients import ShardClients

ELEMENTS = 100_001  # of two bytes, which no shard's piece holds at once
LAYOUTS = {dtype: Layout(dtype, "sgd", (Group(ELEMENTS, {"lr": 1.0}),)) for dtype in ("float32", "float64")}


def rounded(values):
    """Round by PyTorch, to values of the same type."""
    return torch.from_numpy(values).to(torch.float32).to(torch.bfloat16).to(torch.float64).numpy()


@given(arrays(np.uint32, st.integers(0, 50)))
def test_rounding_is_pytorchs(bits):
    """Of all values that a float32 can have, infinities and subnormal numbers included; NaNs stay NaNs."""
    values, into = bits.view(np.float32), np.empty(len(bits), np.uint16)
    round_to_bfloat16(values, into)
    result = torch.from_numpy(into).view(torch.bfloat16).to(torch.float64).numpy()
    np.testing.assert_array_equal(result, rounded(values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_arrays_are_rounded_whole(dtype):
    """Those of several pieces, too."""
    values, into = np.random.default_rng(1).normal(size=70_000).astype(dtype), np.zeros(70_000, np.uint16)
    round_to_bfloat16(values, into)
    result = torch.from_numpy(into).view(torch.bfloat16).to(torch.float64).numpy()
    np.testing.assert_array_equal(result, rounded(values))


@contextlib.contextmanager
def workers(number, layout, push_dtype="bfloat16", synchronisation=None, shards=2):
    """Yield workers' clients of shards at which a job is open, and the shards' services."""
    services = [shard_service() for _ in range(shards)]
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(serving(one)) for one in services]
        made = []
        for worker in range(number):
            clients = [Client(idl.parameter_server.ParameterServer, at, "shard") for at in addresses]
            one = stack.enter_context(
                contextlib.closing(
                    ShardClients(clients, 240.0, push_dtype=push_dtype if not worker else None)
                )
            )
            one.identify(idl.common.Identity("j/run", f"w{worker}", uuid.uuid4().hex))
            initial = np.zeros(layout.elements, layout.dtype)
            one.open(layout, synchronisation or Synchronisation(), initial, Assignment(0, 0, 0, 8, 8), None)
            made.append(one)
        yield made, services


@pytest.mark.parametrize("dtype", LAYOUTS)
@pytest.mark.parametrize("grows", [False, True])
def test_what_is_rounded_is_added_up_in_the_jobs_own_type(dtype, grows):
    """One worker pushes bfloat16 and another does not; half as many bytes, and the weighted mean of both."""
    generator = np.random.default_rng(2)
    first, second = (generator.normal(size=ELEMENTS).astype(dtype) for _ in range(2))
    before, parameters = first.copy(), np.empty(ELEMENTS, dtype)
    with workers(2, LAYOUTS[dtype]) as ((rounding, other), services):
        part = Assignment(0, 0, 0, 6, 8)
        if grows:
            push = rounding.begin_push(part, first, None)
            middle = ELEMENTS // 2
            for ends in itertools.chain([(1000, middle + 1000)], [(30_000, ELEMENTS - 7)]):
                push.advance(ends)
            push.finish()
        else:
            rounding.push(part, first, None)
        pushed = sum(job.tally.pushed for one in services for job in one.jobs)
        other.push(Assignment(0, 0, 6, 2, 8), second, None)
        rounding.pull(1, parameters)
    assert pushed == 2 * ELEMENTS
    expected = -(0.75 * rounded(first) + 0.25 * second.astype(np.float64))
    np.testing.assert_allclose(parameters, expected, rtol=0, atol=1e-6 if dtype == "float32" else 1e-15)
    np.testing.assert_array_equal(first, before)


def test_a_push_that_breaks_off_is_sent_again_rounded(wait_until):
    """Over another connection, once it is whole."""
    gradient = np.random.default_rng(3).normal(size=ELEMENTS).astype(np.float32)
    parameters = np.empty(ELEMENTS, np.float32)
    with workers(1, LAYOUTS["float32"], shards=1) as ((one,), (service,)):
        push = one.begin_push(Assignment(0, 0, 0, 8, 8), gradient, None)
        push.advance([90_000])
        (job,) = service.jobs
        wait_until(lambda: job.shard.contributors, "the first elements")
        one._clients[0].interrupt()
        push.finish()
        one.pull(1, parameters)
        assert one.reconnects == 1
    np.testing.assert_array_equal(-parameters, rounded(gradient))


def test_a_gradient_that_is_not_finite_is_noticed():
    """NaNs and infinities reach the shards as such."""
    for value in (np.nan, np.inf):
        gradient = np.zeros(ELEMENTS, np.float32)
        gradient[ELEMENTS - 1] = value
        with workers(1, LAYOUTS["float32"]) as ((one,), _):
            one.push(Assignment(0, 0, 0, 8, 8), gradient, None)
            assert not one.pushed_finite


def test_exact_sums_and_statistics_are_not_rounded():
    """A job whose sums are exact, or whose gradients have statistics with them, is refused."""
    with (
        pytest.raises(InvalidRequestError, match="push_dtype bfloat16: the job sums gradients exactly"),
        workers(1, LAYOUTS["float32"], synchronisation=Synchronisation(exact=True)),
    ):
        pass
    groups = (Group(ELEMENTS, {"lr": 1.0}), Group(2, {}, statistics=True))
    with (
        pytest.raises(InvalidRequestError, match="push_dtype bfloat16: the model has running statistics"),
        workers(1, Layout("float32", "sgd", groups)),
    ):
        pass


@pytest.mark.parametrize(
    ("dtype", "exact", "reason"),
    [("float16", False, "dtype 'float16': there are bfloat16"), ("bfloat16", True, "sums gradients exactly")],
)
def test_a_shard_refuses_what_it_cannot_add_up(dtype, exact, reason):
    """Of clients in other languages, too."""
    wire = idl.parameter_server
    layout, bulk = LAYOUTS["float32"], memoryview(bytes(2 * ELEMENTS))
    with workers(1, layout, None, Synchronisation(exact=exact), shards=1) as ((one,), _):
        request = wire.PushRequest(
            identity=one._identity, assignment=wire_assignment(Assignment(0, 0, 0, 8, 8)), dtype=dtype
        )
        with pytest.raises(InvalidRequestError, match=reason):
            one._clients[0].call("push", request, bulk=bulk)


def test_settings_name_what_is_allowed():
    """No other type, and none without a parameter server."""
    manager = Address("127.0.0.1", 1)
    with pytest.raises(InvalidRequestError, match="push_dtype 'float16': there are bfloat16"):
        SessionConfig(manager, (manager,), push_dtype="float16")
    with pytest.raises(InvalidRequestError, match="push_dtype bfloat16: without a parameter server"):
        SessionConfig(manager, push_dtype="bfloat16")
