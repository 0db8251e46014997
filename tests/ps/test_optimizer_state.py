"""The optimiser's state at the parameter server: pulled slot by slot, and set before the parameters."""

import uuid

import numpy as np
import pytest
import torch

import idl
from idl.errors import InvalidRequestError, NotMemberError
from idl.layout import Group, Layout
from ps.optimizer_state import State
from ps.optimizers import translate
from ps.shard import Shard
from rpc.client import Client
from tests.ps.tensors import OPTIMIZERS, TORCH, push, values
from tests.services import open_request, serving, shard_service

_ps = idl.parameter_server
SLOTS = {"sgd": {"momentum_buffer"}, "adam": {"exp_avg", "exp_avg_sq"}, "adamw": {"exp_avg", "exp_avg_sq"}}
SIZES = (5, 0, 3)


def layout(name, options):
    """Lay out three groups of parameters, one of them empty, and statistics between them."""
    other = {**options, "lr": options["lr"] / 3}
    first, second, third = SIZES
    groups = (
        Group(first, options),
        Group(second, options),
        Group(2, {}, statistics=True),
        Group(third, other),
    )
    return Layout("float64", name, groups)


def trained(flat):
    """Return the parts of a flat tensor in which the parameters of the three groups lie."""
    return flat[:5], flat[5:5], flat[7:]


def numbers(memory):
    """Return a copy of float64 bytes as a tensor."""
    return torch.frombuffer(bytearray(memory), dtype=torch.float64)


def saved(shard):
    """Return a copy of the shard's parameters and state."""
    return values(shard), State(shard.steps, {slot: numbers(shard.slot(slot)) for slot in shard.slots()})


def steps(shard, count, seed, groups=None):
    """Step with gradients that depend on the seed alone, and with new options if they are given."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        gradient = torch.randn(shard.layout.elements, dtype=torch.float64, generator=generator)
        push(shard, 0, 1, 1, gradient, groups=groups)
        shard.step()


# -- going on


@pytest.mark.parametrize("before", [0, 1, 4])
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_a_shard_goes_on_as_if_it_had_not_stopped(name, options, before):
    """Parameters and state, taken over by a new shard, make the same steps to the last bit."""
    first, second = Shard(layout(name, options)), Shard(layout(name, options))
    first.initialise(torch.ones(10, dtype=torch.float64), 0)
    steps(first, before, seed=1)
    parameters, state = saved(first)
    assert second.initialise(parameters, before, state)
    assert saved(second)[1].slots.keys() == state.slots.keys()
    for shard in (first, second):
        steps(shard, 3, seed=2)
    assert torch.equal(values(first), values(second))
    assert first.steps == before + 3
    for slot, there in saved(first)[1].slots.items():
        assert torch.equal(there, saved(second)[1].slots[slot])


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_slots_are_torchs(name, options):
    """The state is what torch.optim itself keeps, in float64 to the last bit."""
    shard = Shard(layout(name, options))
    shard.initialise(torch.ones(10, dtype=torch.float64), 0)
    groups = [shard.layout.groups[i] for i in (0, 1, 3)]
    parameters = [torch.ones(size, dtype=torch.float64, requires_grad=True) for size in SIZES]
    reference = TORCH[name](
        [{"params": [p], **translate(name, g.options)} for p, g in zip(parameters, groups, strict=True)]
    )
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        gradient = torch.randn(10, dtype=torch.float64, generator=generator)
        push(shard, 0, 1, 1, gradient)
        shard.step()
        for parameter, part in zip(parameters, trained(gradient), strict=True):
            parameter.grad = part
        reference.step()
    expected = SLOTS[name] if name != "sgd" or "momentum" in options else set()
    expected = expected | ({"max_exp_avg_sq"} if "amsgrad" in options else set())
    assert set(shard.slots()) == expected
    for slot in expected:
        there = numbers(shard.slot(slot))
        assert there[5:7].tolist() == [0, 0]  # of the statistics
        for parameter, part in zip(parameters, trained(there), strict=True):
            assert torch.equal(reference.state[parameter][slot], part)


def test_a_group_without_momentum_stays_without():
    """A slot that a group does not use is zero when pulled, and absent again when loaded."""
    with_, without = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}, {"lr": 0.1, "dampening": 0.5}
    shards = [Shard(Layout("float64", "sgd", (Group(2, with_), Group(2, without)))) for _ in range(2)]
    shards[0].initialise(torch.ones(4, dtype=torch.float64), 0)
    steps(shards[0], 2, seed=1)
    parameters, state = saved(shards[0])
    assert state.slots["momentum_buffer"][:2].abs().min() > 0
    assert state.slots["momentum_buffer"][2:].tolist() == [0, 0]
    shards[1].initialise(parameters, 2, state)
    for shard in shards:
        steps(shard, 1, seed=2)
        # The first step with momentum is not dampened: it must be a first one here as well.
        steps(shard, 2, seed=3, groups=[Group(2, with_), Group(2, with_)])
    assert torch.equal(values(shards[0]), values(shards[1]))


# -- on the wire


class Peer:
    """A worker of one job of four float64 elements."""

    ELEMENTS = 4

    def __init__(self, address, job, worker, optimizer="adam"):
        self.client = Client(_ps.ParameterServer, address, "shard", call_timeout=30)
        self.identity = idl.common.Identity(job, worker, uuid.uuid4().hex)
        groups = [_ps.ParameterGroup(self.ELEMENTS, {"lr": 0.1})]
        changes = {"dtype": "float64", "optimizer": optimizer, "groups": groups}
        self.opened = self.client.call("open", open_request(self.identity, self.ELEMENTS, **changes))

    def initialise(self, values, slot=None, steps=None, nbytes=None):
        """Set the parameters, or a slot before them, and return whether they were accepted."""
        request = _ps.InitialiseRequest(self.identity, 0, slot, steps)
        data = memoryview(np.full(self.ELEMENTS, values, float).tobytes()[:nbytes])
        return self.client.call("initialise", request, bulk=data).accepted

    def state(self):
        """Return the optimiser's steps, and its slots by name."""
        reply = self.client.call("state", _ps.StateRequest(self.identity))
        assert reply.identity == self.identity
        return reply.steps, {slot: self.pull(slot).tolist() for slot in reply.slots}

    def pull(self, slot=None, version=-1):
        """Return the parameters or a slot, (elements,)."""
        into = np.empty(self.ELEMENTS)
        self.client.call("pull", _ps.PullRequest(self.identity, version, slot), into=into.data.cast("B"))
        return into

    def push(self, iteration, value):
        """Push the gradient of a whole batch."""
        request = _ps.PushRequest(self.identity, idl.common.Assignment(iteration, 0, 0, 1, 1))
        gradient = memoryview(np.full(self.ELEMENTS, value, float).tobytes())
        self.client.call("push", request, bulk=gradient)


@pytest.fixture
def peer(shard):
    """Yield a function that lets workers open one job at a shard; they are closed at the end."""
    peers, job = [], f"job-{uuid.uuid4().hex}/run"

    def peer(worker, address=shard, job=job, **options):
        peers.append(Peer(address, job, worker, **options))
        return peers[-1]

    yield peer
    for each in peers:
        each.client.close()


def test_only_the_accepted_workers_slots_count(peer):
    """Two workers send a state; the job starts from that of the worker whose parameters are taken."""
    a, b = peer("a"), peer("b")
    assert not b.opened.initialised
    assert a.initialise(1, "exp_avg", steps=3)
    assert b.initialise(2, "exp_avg", steps=5)
    assert b.initialise(20, "exp_avg_sq", steps=5)
    assert a.initialise(10, "exp_avg_sq", steps=3)
    assert b.initialise(7)
    assert not a.initialise(30, "exp_avg", steps=3)
    assert not a.initialise(8)
    assert a.pull().tolist() == [7] * 4
    for each in (a, b):
        assert each.state() == (5, {"exp_avg": [2] * 4, "exp_avg_sq": [20] * 4})
    a.push(0, 1.0)
    steps, slots = b.state()
    assert steps == 6
    np.testing.assert_allclose(slots["exp_avg"], 0.9 * 2 + 0.1)


def test_what_makes_no_sense_is_refused(peer):
    """Each invalid request is refused by name; the connection stays open, and nothing changes."""
    a = peer("a")
    with pytest.raises(InvalidRequestError, match="before the parameters are initialised"):
        a.state()
    for slot, steps, said in (
        ("momentum_buffer", 1, "slot 'momentum_buffer': adam .* has exp_avg, exp_avg_sq"),
        ("", 1, "slot ''"),
        ("exp_avg", None, "steps is missing"),
        ("exp_avg", -1, "steps -1"),
        ("exp_avg", 2**63 - 1, "steps"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            a.initialise(0, slot, steps)
    with pytest.raises(InvalidRequestError, match="31 bytes, but the shard's 4 elements"):
        a.initialise(0, "exp_avg", 1, nbytes=31)
    assert a.initialise(0)
    with pytest.raises(InvalidRequestError, match="slot 'exp_avg': by now there are none"):
        a.pull("exp_avg")
    a.push(0, 1.0)
    with pytest.raises(InvalidRequestError, match="slot 'x': by now there are exp_avg, exp_avg_sq"):
        a.pull("x", version=1)
    assert a.pull("exp_avg").tolist() == pytest.approx([0.1] * 4)
    assert a.state()[0] == 1
    a.identity.job = "another"
    with pytest.raises(NotMemberError, match="has not opened"):
        a.state()


def test_slots_that_wait_take_memory(peer):
    """State that waits for its parameters counts against the memory limit, until it is dropped."""
    nbytes = 8 * Peer.ELEMENTS
    with serving(shard_service(memory_bytes=15 * nbytes)) as address:  # a job with Adam takes 7
        a, b = peer("a", address), peer("b", address)
        a.initialise(1, "exp_avg", steps=1)
        b.initialise(1, "exp_avg", steps=1)
        with pytest.raises(InvalidRequestError, match=f"may hold {15 * nbytes}"):
            peer("c", address, "another/run")
        assert a.initialise(0)
        assert peer("c", address, "another/run").initialise(0)
        with pytest.raises(InvalidRequestError, match=f"of which {14 * nbytes} are in use"):
            peer("c", address, "a third/run")
