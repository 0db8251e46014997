"""The options of a step are one value, for all workers and at all shards, whatever their loops do."""

import contextlib
import threading

import numpy as np
import pytest
import torch
from torch import nn

from batchsize_manager.client import ManagerClient
from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerConfig, ManagerService
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from tests.services import in_threads, send_back, serving, shard_service
from worker.data.slices import Slices
from worker.session import Session, SessionConfig
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute

SAMPLES, BATCH = 14, 6  # of three workers, the last batch of 2 samples leaves one without
RATES = 0.5 ** np.arange(12)


@contextlib.contextmanager
def cluster(workers, shards=2, **config):
    """Start services in this process; yield a function that makes sessions, and the manager's address."""
    with contextlib.ExitStack() as stack:
        job = JobConfig(workers=workers, silence=600.0)  # who is held up keeps its part
        manager = stack.enter_context(serving(ManagerService(ManagerConfig("even", job=job))))
        addresses = tuple(stack.enter_context(serving(shard_service(**config))) for _ in range(shards))

        def session(name, bounds=None):
            config = SessionConfig(manager, addresses, worker=name, bounds=bounds or Bounds())
            return stack.enter_context(contextlib.closing(Session(config)))

        yield session, manager


def train(session, epochs, at=lambda session: None, schedule=None):
    """Train with a stock loop, whose steps add their learning rate to both parameters; return these."""
    loader = DataLoader(torch.utils.data.TensorDataset(torch.zeros(SAMPLES)), BATCH, session=session)
    model = nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()
    optimizer = distribute(torch.optim.SGD(model.parameters(), lr=1.0), loader)
    scheduler = (schedule or torch.optim.lr_scheduler.ExponentialLR)(optimizer, 0.5)
    for _ in range(session.assignment.iteration):
        scheduler.step()  # of who joins late
    for _ in range(epochs):
        for _ in loader:
            optimizer.zero_grad()
            (-model.weight.sum()).backward()
            at(session)
            optimizer.step()
            scheduler.step()
    return model.weight.detach().flatten().tolist()


def test_a_schedule_that_is_stepped_once_a_batch_is_that_of_one_process():
    """A worker without a sample in a batch still goes through the iteration, and so does its schedule."""
    with cluster(3) as (session, _):
        ends = {}
        seen = []

        def run(name):
            ends[name] = train(session(name), 3, lambda session: seen.append(session.assignment.count))

        in_threads(*(lambda name=name: run(name) for name in "abc"))
    assert seen.count(0) == 3
    for parameters in ends.values():
        assert parameters == pytest.approx([RATES[:9].sum()] * 2, abs=1e-12)


def test_a_schedule_catches_up_with_the_job_that_its_worker_joins(wait_until):
    """A schedule that begins at the worker's first iteration agrees with the others'."""
    ends, begins = {}, threading.Event()
    with cluster(1) as (session, address), ManagerClient(address) as manager:
        sessions = {name: session(name) for name in "ab"}

        def wait(session):
            if session.assignment.iteration == 3:
                begins.set()
                wait_until(lambda: len(manager.status("default").members) == 2, "the other worker")

        def early():
            ends["a"] = train(sessions["a"], 3, wait)

        def late():
            assert begins.wait(240)
            ends["b"] = train(sessions["b"], 3)

        in_threads(early, late)
    for parameters in ends.values():
        assert parameters == pytest.approx([RATES[:9].sum()] * 2, abs=1e-12)


def _lambda(optimizer, factor):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor**step)


def _late(optimizer, factor):
    """Step a schedule as one that changes after some steps only."""
    first = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0, total_iters=1)
    then = torch.optim.lr_scheduler.ExponentialLR(optimizer, factor)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [first, then], milestones=[5])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (torch.optim.lr_scheduler.ExponentialLR, RATES),
        (_lambda, RATES),
        (_late, np.concatenate([np.ones(5), RATES])),
    ],
)
@pytest.mark.parametrize("back", [4, 2])
def test_a_pass_that_comes_again_counts_once_for_a_schedule(tmp_path, schedule, rates, back):
    """Each iteration has its own rate, although a job is rewound or repeats a part."""
    with cluster(1, shards=1, state=tmp_path, checkpoint_every=2) as (session, manager):

        def interrupt(session):
            now = session.assignment
            if (now.iteration, now.attempt) == (4, 0):
                send_back(session, manager, back)

        parameters = train(session("w"), 4, interrupt, schedule)
    assert parameters == pytest.approx([rates[:12].sum()] * 2, abs=1e-12)


def test_a_worker_whose_options_differ_is_told_which_and_the_others_go_on():
    """A step has the options of the longest-standing member; a worker that differs gets an error."""
    layout = Layout("float64", "sgd", (Group(2, {"lr": 1.0}),))
    ended, errors, refused = {}, {}, threading.Event()

    def run(session):
        slices = Slices(SAMPLES, BATCH, session)
        session.exchange.prepare(layout, np.zeros(2))
        session.start_training()
        try:
            for _ in range(2):
                for part in slices:
                    differs = part.assignment.iteration == 1 and part.assignment.start == 4 + BATCH
                    if part.assignment.iteration > 1:
                        assert refused.wait(120)
                    session.exchange.gradient.values[:] = -1.0
                    rate = 0.25 if differs else RATES[part.assignment.iteration]
                    session.finish_iteration((Group(2, {"lr": float(rate)}),))
            ended[session.config.worker] = session.exchange.parameters.tolist()
        except InvalidRequestError as error:
            errors[session.config.worker] = str(error)
        finally:
            session.close()
            if errors:
                refused.set()

    with cluster(3) as (session, _):
        in_threads(*(lambda name=name: run(session(name)) for name in "abc"))
    (message,) = errors.values()
    assert "iteration 1: lr of parameter group 0 is 0.25" in message
    assert "but 0.5 at" in message
    assert len(ended) == 2
    for parameters in ended.values():
        assert parameters == pytest.approx([RATES[:6].sum()] * 2, abs=1e-12)


def test_a_worker_without_a_sample_gets_as_many_as_it_takes_at_least():
    """A worker without a sample gets its minimum, which batch normalisation may need."""
    given = []

    def run(session):
        slices = Slices(SAMPLES, BATCH, session)
        session.exchange.prepare(Layout("float64", "sgd", (Group(2, {"lr": 1.0}),)), np.zeros(2))
        session.start_training()
        for part in slices:
            given.append((part.assignment.count, part.indices.tolist()))
            session.finish_iteration()

    with cluster(3) as (session, _):
        in_threads(*(lambda name=name: run(session(name, Bounds(2))) for name in "abc"))
    without = [indices for count, indices in given if not count]
    assert without
    assert all(len(indices) == 2 for indices in without)
