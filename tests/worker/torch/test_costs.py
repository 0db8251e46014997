"""Batches that are split by what samples cost: the same parameters, each sample once, and less waiting."""

import functools
from collections import Counter

import numpy as np
import pytest

from batchsize_manager.client import ManagerClient
from idl.errors import InvalidRequestError
from idl.plan import permutation
from tests.services import OpenServices, in_threads
from tests.worker.tokens import (
    BATCH,
    SAMPLES,
    SEED,
    SPEC,
    Sequences,
    collate,
    flat,
    make_model,
    make_optimizer,
    ordinary_loss,
    tokens_in,
    train_alone,
)
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute

SPEEDS = 1.0, 0.6, 0.4
EPOCHS = 4
LENGTHS = np.array([len(one) for one in Sequences().inputs])


def train(session, rank, cost, seen, leaves_at=None):
    """Train with parts of the batches that take as long as their tokens at the worker's speed."""

    def made_up():
        part = session.assignment
        tokens = LENGTHS[permutation(SPEC, part.epoch)[part.start : part.end]].sum()
        return lambda: max(1e-6, tokens / SPEEDS[rank])

    session.meter.measure_by(made_up)
    model = make_model()
    optimizer = make_optimizer(model)
    options = {"shuffle": True, "seed": SEED, "collate_fn": collate, "weight": tokens_in}
    loader = DataLoader(Sequences(), BATCH, session=session, cost=cost, **options)
    distribute(optimizer, loader, model)
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            part = session.assignment
            if part.iteration == leaves_at:
                session.close()
                return None
            optimizer.zero_grad()
            ordinary_loss(model, inputs, targets).backward()
            optimizer.step()
            seen.update((part.epoch, position) for position in range(part.start, part.end))
    return flat(model)


def train_with(cost, leaves_at=None, **job):
    """Train with three workers; return the first's parameters, and the job's records."""
    seen, ends = Counter(), [None] * 3
    with OpenServices(3, **job) as services:
        sessions = [services.session(f"w{n}") for n in range(3)]

        def run(n):
            ends[n] = train(sessions[n], n, cost, seen, leaves_at if n == 2 else None)

        in_threads(*(functools.partial(run, n) for n in range(3)))
        with ManagerClient(services.manager) as client:
            records = client.history("default", 0)[1]
    assert len(seen) == EPOCHS * SAMPLES
    assert set(seen.values()) == {1}
    return ends[0], records


def waiting(records):
    """Return the mean share of an iteration that workers wait, in the second half of the records."""
    times = [record.batch_processing_times for record in records[len(records) // 2 :]]
    return float(np.mean([1 - one / one.max() for one in times]))


@functools.cache
def alone():
    """The parameters of one process."""
    return train_alone(epochs=EPOCHS)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_workers_wait_less_by_cost(lookahead):
    """Slices of equal cost keep workers waiting for less, and the parameters are those of one process."""
    options = {"policy": "learned", "lookahead": lookahead}
    by_samples, _ = samples = train_with(None, **options)
    by_cost, records = costs = train_with(LENGTHS, **options)
    for parameters in (by_samples, by_cost):
        assert float((parameters - alone()).abs().max()) < 1e-13
    assert waiting(costs[1]) < 0.75 * waiting(samples[1])
    told = [record.column("cost") for record in records]
    assert sum(np.isnan(cost).any() for cost in told) <= 1 + 2 * lookahead
    mean = np.mean(LENGTHS)
    for record, cost in zip(records, told, strict=True):
        order = permutation(SPEC, record.epoch)[record.start : record.start + record.total]
        if not np.isnan(cost).any():
            assert cost.sum() * mean == pytest.approx(LENGTHS[order].sum())


def test_costs_of_a_batch_that_is_redone_are_known():
    """A worker that leaves, be it the one that has told the costs, disturbs nothing."""
    parameters, records = train_with(LENGTHS, leaves_at=SAMPLES // BATCH)
    assert float((parameters - alone()).abs().max()) < 1e-13
    assert sum(np.isnan(record.column("cost")).any() for record in records) <= 2


def test_costs_are_compared_and_checked():
    """Micro-batches are dealt out by number, and a cost must be one number for each sample."""
    with OpenServices(1) as services:
        session = services.session("w0")
        with pytest.raises(InvalidRequestError, match="leave out cost or micro_batch"):
            DataLoader(Sequences(), BATCH, session=session, cost=LENGTHS, micro_batch=4)
        with pytest.raises(InvalidRequestError, match=r"of shape \(3,\): must be one number for each of 96"):
            DataLoader(Sequences(), BATCH, session=session, cost=[1, 2, 3])
