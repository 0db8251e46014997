"""JAX: norms of micro-batches' gradients as the manager gets them, against those worked out one by one."""

import contextlib

import jax.numpy as jnp
import numpy as np
import pytest

from batchsize_manager.client import ManagerClient
from tests.services import in_threads, manager_service, serving, shard_service
from worker.jax.gradient import squared_norm, value_and_grad
from worker.jax.loader import DataLoader
from worker.jax.optimizer import distribute
from worker.jax.rules import sgd
from worker.session import Session, SessionConfig

RATE = 0.05
INPUTS = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
TARGETS = (INPUTS @ np.arange(5) + np.random.default_rng(1).normal(size=60)).astype(np.float32)


def losses(parameters, batch):
    """Return each sample's loss."""
    x, y = batch
    return (x @ parameters["w"] - y) ** 2


def gradient_of(w, indices):
    """Return the mean gradient over samples."""
    x, y = INPUTS[indices].astype(float), TARGETS[indices].astype(float)
    return 2 * (x @ w - y) @ x / len(indices)


def train(rule, workers, change=lambda gradient: gradient):
    """Train for an epoch; return the job's records, and the batches' micro-batches by iteration, in order."""
    seen = {}
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(serving(manager_service(workers)))
        shards = tuple(stack.enter_context(serving(shard_service())) for _ in range(2))

        def run(number):
            config = SessionConfig(manager, shards, worker=f"w{number}", barrier_timeout=240)
            with contextlib.closing(Session(config)) as session:
                loader = DataLoader((INPUTS, TARGETS), 14, session=session, micro_batch=4)
                optimizer = distribute(rule, {"w": jnp.zeros(5)}, loader)
                of_batch = value_and_grad(losses)
                for batch in loader:
                    iteration = session.assignment.iteration
                    _, gradient = of_batch(optimizer.params, batch)
                    parts = [part.indices for part in batch.part.micro_batches if part.count]
                    seen.setdefault(iteration, []).extend(parts)
                    optimizer.step(change(gradient))
                if not number:
                    with ManagerClient(manager) as client:
                        found.extend(client.history("default", 0)[1])

        found = []
        in_threads(*[lambda number=number: run(number) for number in range(workers)])
    return found, seen


def assert_norms(records, seen, factor=1.0):
    """Check the norms of all steps that the records know against gradients of single micro-batches."""
    w, steps = np.zeros(5), {}
    for iteration in sorted(seen):
        samples = sum(map(len, seen[iteration]))
        norms = [(len(part), factor**2 * np.sum(gradient_of(w, part) ** 2)) for part in seen[iteration]]
        mean = factor * gradient_of(w, np.concatenate(seen[iteration]))
        steps[iteration] = (len(norms), samples, sum(b * norm for b, norm in norms), np.sum(mean**2))
        w = w - RATE * mean
    known = [record.norms for record in records if record.norms is not None]
    assert len(known) >= 3
    for step in known:
        norms = step.norms
        found = (norms.contributions, norms.samples, norms.weighted, norms.squared)
        assert found == pytest.approx(steps[step.iteration], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_each_micro_batch_is_a_contribution(workers):
    """Of one worker, and of several; the last one of a batch is smaller."""
    assert_norms(*train(sgd(RATE), workers))


@pytest.mark.slow
def test_norms_are_scaled_as_the_script_scales_the_mean():
    """As by clipping, before the step."""
    halved = train(sgd(RATE), 2, change=lambda gradient: {"w": gradient["w"] / 2})
    assert_norms(*halved, factor=0.5)


def test_long_sums_keep_their_digits():
    """Of millions of equal squares in float32."""
    leaf = jnp.full(5_000_001, 0.1)
    assert float(squared_norm({"a": leaf, "b": jnp.ones(3)})) == pytest.approx(50_003.01, rel=1e-5)
