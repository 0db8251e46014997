"""Batches that are split by what samples cost: the same parameters, each sample once, and less waiting."""

import functools
from collections import Counter

import numpy as np
import pytest
import torch

from batchsize_manager.client import ManagerClient
from evenpace.torch import micro_batches
from idl.errors import InvalidRequestError
from idl.plan import permutation
from idl.synchronisation import Synchronisation
from tests.services import OpenServices, in_threads
from tests.worker.tokens import (
    BATCH,
    SAMPLES,
    SPEC,
    Sequences,
    check_refused_beside,
    collate,
    flat,
    make_loader,
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


def train(session, rank, cost, seen, leaves_at=None, pads=False, **options):
    """Train with parts of the batches that take as long as their tokens at the worker's speed.

    Args:
        pads: Whether they take as long as their tokens with padding.
        options: Those of the loader.
    """
    lengths = [0]  # of the sequences at hand

    def made_up():
        tokens = max(lengths) * len(lengths) if pads else sum(lengths)
        return lambda: max(1e-6, tokens / SPEEDS[rank])

    def note_lengths(samples):
        lengths[:] = [len(inputs) for inputs, _ in samples] if session.assignment.count else [0]
        return collate(samples)

    session.meter.measure_by(made_up)
    model = make_model()
    optimizer = make_optimizer(model)
    own = {"collate_fn": note_lengths, "weight": tokens_in, "weight_limit": 64, "cost": cost}
    loader = make_loader(session, **own | options)
    distribute(optimizer, loader, model)
    for _ in range(EPOCHS):
        for batch in loader:
            part = session.assignment
            if part.iteration == leaves_at:
                session.close()
                return None
            optimizer.zero_grad()
            for inputs, targets in micro_batches(batch) if "micro_batch" in options else [batch]:
                ordinary_loss(model, inputs, targets).backward()
            optimizer.step()
            seen.update((part.epoch, position) for position in range(part.start, part.end))
    return flat(model)


def train_with(cost, leaves_at=None, job=None, workers=3, **options):
    """Train with workers; return the first's parameters, and the job's records."""
    seen, ends = Counter(), [None] * workers
    with OpenServices(workers, **(job or {})) as services:
        sessions = [services.session(f"w{n}") for n in range(workers)]

        def run(n):
            ends[n] = train(sessions[n], n, cost, seen, leaves_at if n == 2 else None, **options)

        in_threads(*(functools.partial(run, n) for n in range(workers)))
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
    job = {"policy": "learned", "lookahead": lookahead}
    by_samples, _ = samples = train_with(None, job=job)
    by_cost, records = costs = train_with(LENGTHS, job=job)
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


def test_sorted_parts_take_less_time():
    """Who pads waits for less, and computes less, where batches are sorted; the result is the same."""
    times = {}
    for sort in (False, True):
        parameters, records = train_with(LENGTHS, job={"policy": "learned"}, pads=True, sort=sort)
        assert float((parameters - alone()).abs().max()) < 1e-13
        times[sort] = [one.batch_processing_times.max() for one in records[len(records) // 2 :]]
    assert sum(times[True]) < 0.75 * sum(times[False])


@pytest.mark.parametrize("sort", [False, True])
def test_bits_do_not_depend_on_who_computes_what(sort):
    """Sorted or not, micro-batches are the same on any workers, and with exact sums all bits are."""
    job = {"synchronisation": Synchronisation(exact=True)}
    ends = [
        train_with(LENGTHS, job=job, workers=workers, micro_batch=3, sort=sort)[0] for workers in (1, 2, 3)
    ]
    assert float((ends[0] - alone()).abs().max()) < 1e-8
    assert all(torch.equal(one, ends[0]) for one in ends)


def test_other_costs_are_refused_where_batches_are_sorted_by_them(wait_until):
    """Two workers that sort by other costs would lose and repeat samples."""
    other = LENGTHS.copy()
    other[[0, 1]] = other[[1, 0]]  # of the same sum
    sorting = functools.partial(train, seen=Counter(), sort=True)
    check_refused_beside(
        lambda session: sorting(session, 0, LENGTHS),
        lambda session: sorting(session, 1, other),
        "sorted_by",
        wait_until,
    )


def test_costs_are_checked():
    """A cost must be one number for each sample, and sorting takes costs."""
    with OpenServices(1) as services:
        session = services.session("w0")
        with pytest.raises(InvalidRequestError, match="sort=True: give the cost of each sample"):
            DataLoader(Sequences(), BATCH, session=session, sort=True)
        with pytest.raises(InvalidRequestError, match=r"of shape \(3,\): must be one number for each of 96"):
            DataLoader(Sequences(), BATCH, session=session, cost=[1, 2, 3])
