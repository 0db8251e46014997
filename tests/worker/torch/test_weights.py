"""Losses that are means over tokens: any workers train as one process does with the whole batch's tokens."""

import functools
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import idl
from batchsize_manager.client import ManagerClient
from evenpace.torch import mean, micro_batches
from idl.cuts import Cuts
from idl.errors import InvalidRequestError
from idl.plan import permutation
from idl.synchronisation import Synchronisation
from rpc.address import Address
from tests.services import OpenServices, in_threads
from tests.worker.tokens import (
    BATCH,
    EPOCHS,
    IGNORED,
    SPEC,
    STEPS,
    Sequences,
    check_refused_beside,
    collate,
    flat,
    loss_for,
    losses_of,
    made_up_times,
    make_loader,
    make_model,
    make_optimizer,
    ordinary_loss,
    tokens_in,
    train_alone,
)
from worker import shard_clients
from worker.session import Session, SessionConfig
from worker.torch.optimizer import distribute
from worker.weights import WEIGHT_LIMIT

BUCKET_MB = 100 / 2**18  # a hundred elements
EXACT = Synchronisation(exact=True)


class Trained:
    """What a worker has trained."""

    def __init__(self):
        self.parameters = torch.empty(0)  # (elements,)
        self.early = 0  # pushes that have begun before the step
        self.without = 0  # slices with samples of which no token counts
        self.first = ()  # begin and end of its part of the first batch


def train(
    session,
    rank,
    weight=tokens_in,
    micro_batch=None,
    weight_limit=WEIGHT_LIMIT,
    loss=None,
    in_step=lambda session: None,
    **options,
):
    """Train with one worker's parts of the batches, whose sizes jump, by times that are made up.

    Args:
        weight: Of the loader.
        weight_limit: Likewise.
        loss: Of the model, inputs and targets; None: that of `evenpace.torch.mean` where the weight is
            "loss", and otherwise an ordinary one.
        in_step: Called with the session before each step; KeyboardInterrupt has the worker leave.
        options: Those of `distribute`.
    """
    trained = Trained()

    loss = loss or loss_for(weight, session)
    session.meter.measure_by(made_up_times(session, rank))
    model = make_model()
    optimizer = make_optimizer(model)
    loader = make_loader(session, micro_batch=micro_batch, weight=weight, weight_limit=weight_limit)
    distribute(optimizer, loader, model, **({"bucket_cap_mb": BUCKET_MB} | options))
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            for inputs, targets in micro_batches(batch) if micro_batch else [batch]:
                loss(model, inputs, targets).backward()
            trained.early += session.exchange._begun is not None
            try:
                in_step(session)
            except KeyboardInterrupt:
                session.close()
                return trained
            part = session.assignment
            trained.first = trained.first or (part.start, part.end)
            optimizer.step()
            trained.without += weight is not None and part.count > 0 and not session.weights.of(part)
    trained.parameters = flat(model)
    return trained


def train_with(workers=3, shards=2, job=None, **options):
    """Train with workers; return what they have trained, and the job's records."""
    found = [None] * workers
    with OpenServices(workers, shards, **(job or {})) as services:
        sessions = [services.session(f"w{n}") for n in range(workers)]

        def run(n):
            found[n] = train(sessions[n], n, **options)

        in_threads(*(functools.partial(run, n) for n in range(workers)))
        with ManagerClient(services.manager) as client:
            records = client.history("default", 0)[1]
    return found, records


@functools.cache
def alone(by_samples=False):
    """The parameters that one process trains with whole batches."""
    return train_alone(micro_batch=4 if by_samples else None, by_samples=by_samples)


def difference(trained):
    """Return the largest difference of any worker's parameters from those of one process."""
    return max(float((one.parameters - alone()).abs().max()) for one in trained)


@pytest.fixture(autouse=True)
def _small_parts_are_pulled_early(monkeypatch):
    """Steps are taken in parts for small models, too."""
    monkeypatch.setattr(shard_clients, "LEAST_EARLY_PULL", 0)


@pytest.mark.parametrize("weight", [tokens_in, "loss"], ids=["function", "loss"])
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_parameters_are_those_of_one_process(weight, micro_batch):
    """Any split trains as one process does, in pushes that begin early; by samples it would be another."""
    trained, records = train_with(weight=weight, micro_batch=micro_batch)
    assert difference(trained) < 1e-13
    assert float((alone(by_samples=True) - alone()).abs().max()) > 0.01
    assert len({tuple(record.batch_sizes) for record in records}) > 2
    assert sum(one.without for one in trained) > 0
    assert all(one.early for one in trained)


@pytest.mark.parametrize(
    ("job", "options"),
    [
        ({"synchronisation": Synchronisation("backup", replicas_to_aggregate=2)}, {"workers": 2}),
        ({}, {"bucket_cap_mb": None}),
        ({"lookahead": 1}, {}),
    ],
    ids=["backup", "pushed by the step", "lookahead"],
)
def test_other_ways_give_the_same(job, options):
    """With backup workers, pushes of whole gradients, and plans ahead, parameters are one process's."""
    trained, _ = train_with(job=job, **options)
    assert difference(trained) < 1e-13


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_parts_of_a_worker_that_leaves_are_weighted(micro_batch):
    """Others compute the part of a worker that leaves in an iteration, each with its own weight."""

    def leave(session):
        if session.config.worker == "w2" and session.assignment.iteration == STEPS // 2:
            raise KeyboardInterrupt

    trained, records = train_with(micro_batch=micro_batch, in_step=leave)
    assert difference(trained[:2]) < 1e-13
    assert [len(record.workers) for record in records[:: STEPS - 1]] == [3, 2]


def test_exact_sums_have_the_same_bits_with_any_workers():
    """Weights are rounded and summed exactly, so that nothing depends on who computes what."""
    ends = [
        train_with(workers, job={"synchronisation": EXACT}, micro_batch=3, weight=weight, weight_limit=64)[0]
        for workers, weight in ((1, tokens_in), (3, tokens_in), (2, "loss"))
    ]
    assert difference(ends[0]) < 1e-9
    for trained in ends:
        for one in trained:
            assert torch.equal(one.parameters, ends[0][0].parameters)


def test_a_weight_beyond_what_exact_sums_take_is_refused():
    """The error names the limit, which the loader may raise."""
    said = "at most weight_limit=2 for each"
    with (
        OpenServices(1, synchronisation=EXACT) as services,
        pytest.raises(InvalidRequestError, match=said),
    ):
        train(services.session("w0"), 0, micro_batch=3, weight_limit=2)


def test_class_weights_are_weights():
    """A class may weigh a fraction or nothing; a gradient of NaN where nothing counts is not looked at."""
    classes = torch.tensor([0.0] * 6 + [0.25, 1.5] + [1.0] * 5, dtype=torch.float64)

    def weigh(batch):
        targets = batch[1]
        return classes[targets.where(targets != IGNORED, 0)][targets != IGNORED].sum()

    def loss(model, inputs, targets):
        scores = model(inputs).transpose(1, 2)
        return nn.functional.cross_entropy(scores, targets, classes, ignore_index=IGNORED)

    ends = [train_with(workers, weight=weigh, loss=loss)[0] for workers in (1, 5)]
    assert torch.isfinite(ends[0][0].parameters).all()
    for one in ends[1]:
        assert torch.allclose(one.parameters, ends[0][0].parameters, rtol=0, atol=1e-13)


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_norms_are_weighted_by_tokens(micro_batch):
    """The noise of gradients goes with tokens: a part's samples are its share of the batch's tokens."""
    trained, records = train_with(micro_batch=micro_batch)
    norms = next(one.norms.norms for one in records if one.norms is not None and not one.norms.iteration)
    places = Cuts(BATCH, micro_batch).within(0, BATCH) if micro_batch else [one.first for one in trained]
    data, model, first = Sequences(), make_model(), permutation(SPEC, 0)[:BATCH]
    weights, squares = [], []
    for begin, end in places:
        inputs, targets = collate([data[int(i)] for i in first[begin:end]])
        model.zero_grad()
        ordinary_loss(model, inputs, targets).backward()
        weights.append(int(tokens_in((inputs, targets))))
        squares.append(sum(float(p.grad.square().sum()) for p in model.parameters()))
    expected = np.dot(weights, squares) * BATCH / sum(weights)
    assert (norms.contributions, norms.samples) == (np.count_nonzero(weights), BATCH)
    assert norms.weighted == pytest.approx(expected, rel=1e-9)


def test_a_mean_over_nothing_is_zero():
    """What does not count is not looked at, in the loss and in its gradient."""
    losses = torch.tensor([[1.0, math.inf]], requires_grad=True)
    session = Session(SessionConfig(Address("127.0.0.1", 1)))
    session.weights.declare("loss", 8)
    assert mean(losses, torch.tensor([[0, 0]]), session=session) == 0
    one = mean(losses, torch.tensor([[2.0, 0.0]]), session=session)
    one.backward()
    assert one == 1
    assert losses.grad.tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (lambda batch: -1, "weight=: a weight of -1: must be a finite number from 0"),
        (lambda batch: math.nan, "weight=: a weight of nan: must be a finite number from 0"),
        (lambda batch: "many", "weight=: a weight of 'many': must be a number"),
        ("tokens", "weight='tokens': must be a function"),
    ],
    ids=["negative", "nan", "text", "name"],
)
def test_what_is_no_weight_is_refused(weight, said):
    """The error names the value and what is allowed."""
    with OpenServices(1) as services, pytest.raises(InvalidRequestError, match=said):
        train(services.session("w0"), 0, weight=weight)


def test_weights_of_one_worker_alone_are_refused(wait_until):
    """All workers' gradients are means over tokens, or none's: the manager compares at join."""
    without = functools.partial(train, rank=1, weight=None)
    check_refused_beside(functools.partial(train, rank=0), without, "weight_limit None", wait_until)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (lambda targets: targets != IGNORED, None),
        (lambda targets: targets > 3, r"is a mean over \d+ by weight=, and over \d+ by evenpace.torch.mean"),
    ],
    ids=["agree", "differ"],
)
def test_a_function_and_a_loss_must_agree(mask, said):
    """Where both say what the gradient is a mean over, two numbers are an error in the backward pass."""
    with OpenServices(1) as services:
        session = services.session("w0")

        def loss(model, inputs, targets):
            return mean(losses_of(model, inputs, targets), mask(targets), session=session)

        with nullcontext() if said is None else pytest.raises(InvalidRequestError, match=said):
            train(session, 0, loss=loss)


def test_a_loss_that_says_nothing_is_refused():
    """A mean that does not go backward, as for a metric, says nothing of the gradient."""
    with OpenServices(1) as services:
        session = services.session("w0")

        def loss(model, inputs, targets):
            mean(losses_of(model, inputs, targets), session=session)
            return ordinary_loss(model, inputs, targets)

        with pytest.raises(InvalidRequestError, match="it is not known what the gradient is a mean over"):
            train(session, 0, weight="loss", loss=loss)


def test_a_mean_without_weights_is_refused():
    """A loader without weights takes gradients for means over samples, whatever a loss says."""
    with OpenServices(1) as services:
        session = services.session("w0")

        def loss(model, inputs, targets):
            return mean(losses_of(model, inputs, targets), session=session)

        with pytest.raises(InvalidRequestError, match="make the loader with weight="):
            train(session, 0, weight=None, loss=loss)


def test_a_shard_that_would_not_look_at_weights_is_refused(monkeypatch):
    """A parameter server of an earlier version would weight by samples, without a word."""
    own = idl.parameter_server.OpenReply
    monkeypatch.setattr(idl.parameter_server, "OpenReply", lambda **fields: own(**fields | {"weights": None}))
    with OpenServices(1) as services:
        train(services.session("w0", job="samples"), 0, weight=None)
        with pytest.raises(InvalidRequestError, match="whatever weight= says: it is of an earlier version"):
            train(services.session("w0", job="tokens"), 0)
