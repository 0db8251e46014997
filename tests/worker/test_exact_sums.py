"""Exact sums of workers without a framework: real services, and sessions in threads."""

import contextlib
import itertools
import logging

import numpy as np
import pytest

from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from idl.plan import JobSpec
from idl.synchronisation import Synchronisation
from tests.services import in_threads, serving, shard_service
from tests.worker.test_recovery import in_process_manager
from worker.data.slices import Slices
from worker.learning_rates import factor_by
from worker.session import Session, SessionConfig

EXACT = Synchronisation(exact=True)
SPEC = JobSpec(60, 18, seed=3, micro_batch=4)
# So many that sums which round differ in one of them at least, whatever order they arrive in.
ELEMENTS = 999
LAYOUT = Layout(
    "float32",
    "adam",
    (Group(ELEMENTS - 2, {"lr": 0.01}), Group(2, {}, statistics=True)),
)


def gradient_of(parameters, indices):
    """Return a micro-batch's gradient and statistics, (elements,) float32, as depends on the parameters."""
    sample = np.sin(np.outer(indices, np.arange(1, ELEMENTS + 1))).astype(np.float32)
    return (sample * (1 + parameters)).mean(axis=0, dtype=np.float32)


def accumulate_all(session, gradient, count):
    """Add a micro-batch's gradient."""
    session.exchange.gradient.accumulate(session.assignment, gradient, count)


def train(session, accumulate=accumulate_all, epochs=2, sizes=SPEC.total_batch_size):
    """Train, with one contribution for each micro-batch; return the parameters at the end."""
    slices = Slices(SPEC.dataset_size, sizes, session, shuffle=True, seed=SPEC.seed, micro_batch=4)
    session.training.scale_lr_by(factor_by("sqrt", "adam"))
    session.exchange.prepare(LAYOUT, np.linspace(-1, 1, ELEMENTS, dtype=np.float32))
    session.start_training()
    for _ in range(epochs):
        for part in slices:
            for micro_batch in part.micro_batches:
                gradient = gradient_of(session.exchange.parameters, micro_batch.indices)
                accumulate(session, gradient, micro_batch.count)
            session.finish_iteration()
    return session.exchange.parameters.copy()


def trained(workers, shards, synchronisation, policy="even", **options):
    """Train with workers in threads, and return the parameters that each ends with."""
    results = [np.empty(0)] * workers
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(in_process_manager(workers, policy, synchronisation=synchronisation))
        places = tuple(stack.enter_context(serving(shard_service())) for _ in range(shards))
        sessions = [
            stack.enter_context(contextlib.closing(Session(SessionConfig(manager, places, worker=f"w{i}"))))
            for i in range(workers)
        ]

        def run(number):
            results[number] = train(sessions[number], **options)

        in_threads(*[lambda number=number: run(number) for number in range(workers)])
    return results


def test_parameters_do_not_depend_on_workers_splits_and_shards():
    """With any of these, float32 parameters and statistics end with the same bits; sums that round do not."""
    alone = trained(1, 1, EXACT)[0]
    for workers, shards, policy in [(2, 1, "even"), (4, 3, "even"), (3, 2, "proportional")]:
        for parameters in trained(workers, shards, EXACT, policy):
            assert parameters.tobytes() == alone.tobytes()
    rounded = trained(3, 2, Synchronisation())[0]
    # Not the largest difference: Adam divides by the gradient, which is almost zero for some elements.
    assert 0 < np.abs(rounded - alone).mean() < 1e-4


def test_parameters_do_not_depend_on_them_while_batches_change_their_size():
    """With a schedule, and learning rates that follow it, they end with the same bits, too."""
    options = {"epochs": 4, "sizes": {0: 18, 1: 30, 2: 8, 3: 60}}
    alone = trained(1, 1, EXACT, **options)[0]
    for workers, shards, policy in [(2, 1, "even"), (3, 2, "proportional")]:
        for parameters in trained(workers, shards, EXACT, policy, **options):
            assert parameters.tobytes() == alone.tobytes()
    constant = trained(1, 1, EXACT, epochs=4)[0]
    assert constant.tobytes() != alone.tobytes()


def fill(session, gradient, count):
    """Set the gradient of the whole slice."""
    session.exchange.gradient.values[:] = gradient


def accumulate_but_one():
    """Make a function that accumulates all micro-batches but the first."""
    calls = itertools.count()

    def accumulate(session, gradient, count):
        if next(calls):
            session.exchange.gradient.accumulate(session.assignment, gradient, count)

    return accumulate


@pytest.mark.parametrize(("accumulate", "samples"), [(fill, 0), (accumulate_but_one(), 14)])
def test_a_gradient_that_is_not_of_each_micro_batch_is_refused(accumulate, samples):
    """A framework, or a loop, without contributions of micro-batches learns so before it pushes."""
    with pytest.raises(InvalidRequestError, match=f"iteration 0 are of {samples} of 18 samples"):
        trained(1, 1, EXACT, accumulate=accumulate)


def test_a_gradient_out_of_range_ends_the_worker():
    """The error has the value and what is allowed, and nothing was pushed."""

    def explode(session, gradient, count):
        session.exchange.gradient.accumulate(session.assignment, gradient * np.float32(1e9), count)

    with pytest.raises(InvalidRequestError, match=r"absolute value of \d.*e\+0\d: exact sums .* below 1\.0"):
        trained(1, 1, EXACT, accumulate=explode)


def test_a_job_without_micro_batches_is_refused(caplog):
    """The manager says what is missing."""
    with in_process_manager(1, synchronisation=EXACT) as manager:
        session = Session(SessionConfig(manager, (manager,), worker="w0"))
        with contextlib.closing(session):
            Slices(60, 14, session)
            with pytest.raises(InvalidRequestError, match="has no micro-batches"):
                session.join()


@pytest.mark.parametrize("synchronisation", [EXACT, Synchronisation()])
def test_workers_whose_bits_may_differ_are_named(synchronisation, caplog):
    """Other threads or another device than an earlier worker's are logged, where sums are exact."""
    caplog.set_level(logging.INFO)
    with in_process_manager(4, synchronisation=synchronisation) as manager, contextlib.ExitStack() as stack:
        sessions = []
        for number, (device, threads) in enumerate([("A", 1), ("A", 1), ("A", 2), ("B", None)]):
            session = Session(SessionConfig(manager, (manager,), worker=f"w{number}"))
            stack.enter_context(contextlib.closing(session))
            session.device.describe(device, threads)
            session.training.declare(SPEC)
            sessions.append(session)
        in_threads(*[session.join for session in sessions])
    lines = [record.getMessage() for record in caplog.records if "sums are exact, but" in record.getMessage()]
    if synchronisation.exact:
        assert any("w2 computes on A, 2 threads" in line or "on A, 2 threads" in line for line in lines)
        assert any("B, unknown threads" in line for line in lines)
    else:
        assert not lines
