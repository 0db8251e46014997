"""Parameters are pulled while the next forward pass computes, and the result is that of one big batch."""

import contextlib
import copy
import io

import pytest
import torch
from torch import nn

from evenpace.lab.proxy import Proxy
from idl.errors import InvalidRequestError
from tests.services import in_threads, manager_service, send_back, serving, shard_service
from tests.worker.torch.test_backward_push import (
    BATCH,
    BUCKET_MB,
    EPOCHS,
    SAMPLES,
    SEED,
    Rows,
    leave,
    make_model,
    make_optimizer,
    train_alone,
)
from worker.session import Session, SessionConfig
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute

STEPS = SAMPLES // BATCH
AHEAD = [*range(2, STEPS - 1), *range(STEPS, 2 * STEPS - 1)]  # not in the trials, nor at an epoch's end
RATE = 20e6  # bytes per second


class Links:
    """A manager and shards, behind links that can be cut, and the sessions of workers."""

    def __init__(self, workers=1, shards=2):
        self._workers, self._shards = workers, shards
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        enter = self._stack.enter_context
        self.manager = enter(serving(manager_service(self._workers)))
        self.proxy = enter(Proxy(RATE))
        shards = [enter(serving(shard_service())) for _ in range(self._shards)]
        self._addresses = [self.proxy.add(str(n), shard) for n, shard in enumerate(shards)]
        return self

    def __exit__(self, *error):
        self._stack.close()

    def session(self, name="w"):
        """Make a worker's session, which ends with the services."""
        config = SessionConfig(self.manager, self._addresses, worker=name, barrier_timeout=60)
        return self._stack.enter_context(contextlib.closing(Session(config)))

    def cut(self):
        """Reset all connections to the shards."""
        for link in self.proxy.links.values():
            self.proxy.do(link.cut)


def train(session, model, after_step=lambda iteration: None, compute=None, **options):
    """Train with one worker's part of each batch; return parameters, and steps that returned without them."""
    compute = compute or model
    optimizer = make_optimizer(model)
    loader = DataLoader(Rows(), BATCH, shuffle=True, seed=SEED, session=session)
    distribute(optimizer, loader, model, **({"bucket_cap_mb": BUCKET_MB, "pull_ahead": True} | options))
    ahead, last = [], list(model.parameters())[-1]
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(compute(inputs), targets).backward()
            iteration, before = session.assignment.iteration, last.clone()
            optimizer.step()
            if torch.equal(last, before):
                ahead.append(iteration)
            after_step(iteration)
    return nn.utils.parameters_to_vector(model.parameters()).detach(), ahead


@pytest.mark.parametrize(("workers", "shards"), [(1, 1), (2, 3)])
def test_the_result_is_that_of_one_process(workers, shards):
    """Steps within an epoch return before the parameters are there, and each module computes with its own."""
    ends = []
    with Links(workers, shards) as links:
        sessions = [links.session(f"w{n}") for n in range(workers)]
        in_threads(*(lambda s=s: ends.append(train(s, make_model())) for s in sessions))
    alone = train_alone(leave)
    assert len(ends) == workers
    for parameters, ahead in ends:
        assert ahead == AHEAD
        torch.testing.assert_close(parameters, alone, rtol=0, atol=1e-12)


def test_a_layer_waits_for_its_own_parameters_only():
    """The first layer computes with its new parameters, while the last one still has its old ones."""
    model, iteration, seen = make_model(), 0, []
    first, last = model[0].weight, list(model.parameters())[-1]

    def note(done):
        nonlocal iteration, before
        iteration, before = done + 1, (first.clone(), last.clone())

    before = (first.clone(), last.clone())
    with Links() as links:
        session = links.session()

        def look(*arguments):
            if iteration - 1 in AHEAD:
                seen.append((torch.equal(first, before[0]), torch.equal(last, before[1])))

        # A hook of the script's, which may read the layer's parameters, is called after ours.
        model[0].register_forward_pre_hook(look)
        train(session, model, note)
    assert seen == [(False, True)] * len(AHEAD)


class Head(nn.Module):
    """A layer that reads the parameters of another, which it does not call."""

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(64, 5, dtype=torch.float64)

    def forward(self, hidden):
        """Compute five outputs."""
        return nn.functional.linear(hidden, self.read.weight, self.read.bias)


class Tangled(nn.Module):
    """A model whose modules use one another's parameters, or none, or change from batch to batch."""

    def __init__(self):
        super().__init__()
        kind = {"dtype": torch.float64}
        self.scale = nn.Parameter(torch.ones(5, **kind))
        self.unused = nn.Linear(64, 64, **kind)
        self.later = nn.Linear(64, 64, **kind)
        self.first = nn.Linear(7, 64, **kind)
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True, **kind)  # does not call its out_proj
        self.norm = nn.BatchNorm1d(64, **kind)
        self.tied = nn.Linear(64, 64, **kind)
        self.again = nn.Linear(64, 64, **kind)
        self.again.weight = self.tied.weight
        self.at_times = nn.Linear(64, 64, **kind)
        self.head = Head()
        self.batches = 0

    def forward(self, inputs):
        """Compute five outputs."""
        self.batches += self.training
        hidden = self.first(inputs)
        hidden = hidden + self.attention(hidden[:, None], hidden[:, None], hidden[:, None])[0][:, 0]
        hidden = self.norm(hidden)
        if self.training:
            hidden = self.again(torch.tanh(self.tied(hidden)))
        else:  # as layers of torch's have a faster path
            hidden = nn.functional.linear(hidden, self.tied.weight, self.tied.bias)
            hidden = nn.functional.linear(torch.tanh(hidden), self.again.weight, self.again.bias)
        if self.batches % 3 == 2:
            hidden = self.at_times(hidden)
        if self.batches % 5 == 4:  # not in the first three
            hidden = self.later(hidden)
        return self.head(hidden) * self.scale


class Parts(nn.Module):
    """A model that is not called as a whole, and the last of whose parts is not, either."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (
            nn.Linear(a, b, dtype=torch.float64) for a, b in ((7, 64), (64, 64), (64, 5))
        )

    def __call__(self, inputs):
        """Compute five outputs, as a script does."""
        hidden = self.second(torch.tanh(self.first(inputs)))
        return nn.functional.linear(hidden, self.last.weight, self.last.bias)


def trained(make, *, pull_ahead, evaluates=True):
    """Train a model with one worker; return state dictionaries and outputs after steps."""
    model = make()
    generator = torch.Generator().manual_seed(SEED)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1, generator=generator)
    states, outputs = [], []

    def look(iteration):
        if iteration % 2:  # else parameters that no one has asked for are at the next forward pass
            return
        if evaluates:
            with torch.no_grad():
                outputs.append(model.eval()(Rows().inputs))
            model.train()
        states.append(copy.deepcopy(model.state_dict()))

    with Links() as links:
        _, ahead = train(links.session(), model, look, pull_ahead=pull_ahead)
    return states, outputs, ahead


@pytest.mark.parametrize("make", [Tangled, Parts])
def test_modules_that_use_one_anothers_parameters_get_them(make):
    """Bits are those of pulls by the step: of parameters, running statistics, and of evaluations between."""
    states, outputs, ahead = trained(make, pull_ahead=True)
    expected_states, expected_outputs, by_the_step = trained(make, pull_ahead=False)
    assert ahead == AHEAD
    assert by_the_step == []
    torch.testing.assert_close(states, expected_states, rtol=0, atol=0)
    torch.testing.assert_close(outputs, expected_outputs, rtol=0, atol=0)


def test_a_state_dictionary_waits():
    """It has the parameters of the step that has returned, of the whole model and of a part."""
    states, _, _ = trained(Tangled, pull_ahead=True, evaluates=False)
    expected, _, _ = trained(Tangled, pull_ahead=False, evaluates=False)
    torch.testing.assert_close(states, expected, rtol=0, atol=0)


@pytest.mark.parametrize("rewinds", [False, True], ids=["cut", "cut and rewound"])
def test_a_forward_pass_outlives_broken_connections(rewinds):
    """Where connections break, or the job is rewound, as parameters arrive, the result is the same."""
    model, broken = make_model(), []
    with Links() as links:
        session = links.session()

        def disturb(*arguments):
            if session.assignment.iteration in (4, 9, 13) and session.assignment.iteration not in broken:
                broken.append(session.assignment.iteration)
                links.cut()
                if rewinds:
                    send_back(session, links.manager, session.assignment.iteration)

        model[0].register_forward_pre_hook(disturb)
        parameters, _ = train(session, model)
        attempt = session.assignment.attempt
    assert broken == [4, 9, 13]
    assert attempt == (3 if rewinds else 0)
    torch.testing.assert_close(parameters, train_alone(leave), rtol=0, atol=1e-12)


@pytest.mark.parametrize("gives_compiled", [True, False])
def test_a_compiled_model_computes_with_its_parameters(gives_compiled, caplog):
    """It waits for all of them if it was given; else the step pulls them, and a line of log says so."""
    model = make_model()
    compiled = torch.compile(model, backend="eager")
    with Links() as links:
        given = compiled if gives_compiled else model
        parameters, ahead = train(links.session(), given, compute=compiled)
    assert ahead == (AHEAD if gives_compiled else [])
    assert ("pull_ahead: none of the modules" in caplog.text) == (not gives_compiled)
    torch.testing.assert_close(parameters, train_alone(leave), rtol=0, atol=1e-12)


def test_copies_of_the_model_wait_for_nothing():
    """A model can be copied and pickled, and its copies compute at once."""
    model = make_model()
    with Links() as links:
        train(links.session(), model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    inputs = Rows().inputs
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        torch.testing.assert_close(other(inputs), model(inputs), rtol=0, atol=0)


def test_without_the_model_it_is_refused():
    """There is nothing that could wait."""
    model = make_model()
    with Links() as links:
        loader = DataLoader(Rows(), BATCH, session=links.session())
        with pytest.raises(InvalidRequestError, match="pull_ahead: give the model"):
            distribute(make_optimizer(model), loader, pull_ahead=True)
