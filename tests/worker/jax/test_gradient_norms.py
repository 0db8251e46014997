"""JAX: norms of micro-batches' gradients as the manager gets them, against those worked out one by one."""

import contextlib

import jax.numpy as jnp
import numpy as np
import pytest

from batchsize_manager.client import ManagerClient
from tests.services import OpenServices, in_threads
from worker.jax.gradient import squared_norm, value_and_grad
from worker.jax.loader import DataLoader
from worker.jax.optimizer import distribute
from worker.jax.rules import sgd

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


def train(rule, workers, change):
    """Train for an epoch; return the job's records, and the batches' micro-batches by iteration, in order."""
    seen = {}
    with OpenServices(workers, 2) as services:

        def run(number):
            with contextlib.closing(services.session(f"w{number}")) as session:
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
                    with ManagerClient(services.manager) as client:
                        found.extend(client.history("default", 0)[1])

        found = []
        in_threads(*[lambda number=number: run(number) for number in range(workers)])
    return found, seen


def assert_norms(records, seen, factor):
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
@pytest.mark.parametrize(("workers", "factor"), [(1, 1.0), (2, 0.5)])
def test_each_micro_batch_is_a_contribution(workers, factor):
    """The last one of a batch is smaller; norms are scaled as the script scales the mean before the step."""
    assert_norms(*train(sgd(RATE), workers, lambda gradient: {"w": factor * gradient["w"]}), factor)


def test_long_sums_keep_their_digits():
    """Of millions of equal squares in float32."""
    leaf = jnp.full(5_000_001, 0.1)
    assert float(squared_norm({"a": leaf, "b": jnp.ones(3)})) == pytest.approx(50_003.01, rel=1e-5)
