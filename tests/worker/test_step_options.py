"""The options of a step are one value, for all workers and at all shards, whatever their loops do."""

import contextlib
import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerConfig, ManagerService
from idl.bounds import Bounds
from idl.layout import Group, Layout
from tests.services import in_threads, send_back, serving, shard_service
from worker.data.slices import Slices
from worker.session import Session, SessionConfig
from worker.step_options import StepOptions
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute


def groups(rate):
    """Make groups with a learning rate."""
    return (Group(3, {"lr": rate}),)


def test_each_iteration_has_the_options_that_hold():
    """An iteration has the first options, or those of the last change."""
    options = StepOptions(groups(1.0))
    options_of_iterations = [options.at(i, groups(0.1 * i) if i % 2 else None) for i in range(1, 5)]
    assert options_of_iterations == [groups(0.1), groups(0.1), groups(0.1 * 3), groups(0.1 * 3)]
    assert StepOptions().at(0) is None


def test_iterations_that_come_again_have_the_options_that_they_had():
    """A repeated iteration keeps its options; changes made meanwhile hold from the next new one."""
    options = StepOptions(groups(1.0))
    for iteration in range(6):
        options.at(iteration, groups(iteration) if iteration in {2, 4} else None)
    again = [options.at(1, groups(9.0)), *(options.at(i) for i in range(2, 8))]
    assert again == [groups(1.0), groups(2), groups(2), groups(4), groups(4), groups(9.0), groups(9.0)]


def test_a_worker_says_nothing_of_iterations_before_it_came():
    """A worker has no options of iterations before it joined."""
    options = StepOptions(groups(1.0))
    options.at(5)
    assert options.at(3) is None


def test_a_schedule_that_is_stepped_in_each_iteration_takes_little_memory():
    """Of 60 groups with five options, some 3 KiB an iteration."""
    options = StepOptions()
    tracemalloc.start()
    try:
        for iteration in range(500):
            rate = 1 / (iteration + 1)
            values = {"lr": rate, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
            options.at(iteration, [Group(10, dict(values)) for _ in range(60)])
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 500 < 5000
    assert [group.options["lr"] for group in options.at(123)] == [1 / 124] * 60


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
