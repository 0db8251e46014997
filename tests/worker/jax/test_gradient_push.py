"""Gradients are pushed while `value_and_grad` computes them, and the result is that of one big batch."""

import itertools
import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from idl.errors import InvalidRequestError
from idl.plan import JobSpec, permutation
from tests.services import OpenServices, in_threads
from worker import shard_clients
from worker.jax.gradient import value_and_grad
from worker.jax.loader import DataLoader
from worker.jax.optimizer import distribute
from worker.jax.rules import sgd

SAMPLES, BATCH, SEED, EPOCHS = 96, 12, 3, 2
SPEC = JobSpec(SAMPLES, BATCH, SEED)
BUCKET_MB = 100 / 2**18  # of float32: a hundred elements
# Eleven layers, so that names in the alphabet's order are not in that of layers. The last one is larger than
# what a shard reads at once.
WIDTHS = (7, *[20] * 9, 400, 400)
TRIALS = 3  # batches that show whether the script changes gradients
HELD = 9  # the last layer but one: those before it have one digit, the last one has two


@pytest.fixture(autouse=True)
def _few_are_pulled_early(monkeypatch):
    """Have these few parameters pulled early, too."""
    monkeypatch.setattr(shard_clients, "LEAST_EARLY_PULL", 0)


def make_data():
    """Draw inputs, (SAMPLES, 7), and targets, (SAMPLES, 400)."""
    generator = np.random.default_rng(SEED)
    return generator.normal(size=(SAMPLES, 7)), generator.normal(size=(SAMPLES, 400))


def make_params():
    """Draw the parameters of the layers."""
    generator = np.random.default_rng(SEED)
    return {
        f"layer_{n}": {"kernel": generator.normal(size=(a, b)) / a**0.5, "bias": generator.normal(size=b)}
        for n, (a, b) in enumerate(itertools.pairwise(WIDTHS))
    }


def losses(params, batch, held=lambda kernel, inputs: kernel):
    """Return each sample's loss; a layer's gradient goes through the backward pass of `held`."""
    outputs, targets = batch
    for n in range(len(params)):
        kernel, bias = params[f"layer_{n}"]["kernel"], params[f"layer_{n}"]["bias"]
        outputs = jnp.tanh(outputs @ (held(kernel, batch[0]) if n == HELD else kernel) + bias)
    return ((outputs - targets) ** 2).mean(axis=1)


def leave(iteration, gradient):
    """Change nothing."""
    return gradient


def copy(iteration, gradient):
    """Make other arrays of the same values, as clipping does where nothing is too large."""
    return jax.tree.map(lambda leaf: leaf * 1.0, gradient)


def scale(iteration, gradient):
    """Change gradients, as clipping does."""
    return jax.tree.map(lambda leaf: leaf * 0.5, gradient)


def scale_late(iteration, gradient):
    """Change gradients from some iteration on."""
    return scale(iteration, gradient) if iteration >= 6 else gradient


def flat(params):
    """Return all parameters as one array."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def train_alone(change=leave):
    """Train in one process on whole batches with optax; return the parameters."""
    with jax.enable_x64(True):
        data, params = make_data(), make_params()
        optimizer = optax.sgd(0.1, momentum=0.9)
        state = optimizer.init(params)
        gradient_of = jax.jit(jax.grad(lambda params, batch: losses(params, batch).mean()))
        batches = [part for epoch in range(EPOCHS) for part in np.split(permutation(SPEC, epoch), 8)]
        for iteration, indices in enumerate(batches):
            gradient = change(iteration, gradient_of(params, tuple(array[indices] for array in data)))
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return flat(params)


def train(session, change=leave, loss_fn=losses, before_step=lambda iteration: None, micro=None, **options):
    """Train with one worker's part of each batch; return the parameters, and its session's attempts."""
    with jax.enable_x64(True):
        loader = DataLoader(make_data(), BATCH, shuffle=True, seed=SEED, session=session, micro_batch=micro)
        step = value_and_grad(loss_fn, None if micro else 4)
        options = {"value_and_grad": step, "bucket_cap_mb": BUCKET_MB} | options
        optimizer = distribute(sgd(0.1, momentum=0.9), make_params(), loader, **options)
        attempts = set()
        for _ in range(EPOCHS):
            for batch in loader:
                iteration = session.assignment.iteration
                _, gradient = step(optimizer.params, batch)
                before_step(iteration)
                attempts.add(session.assignment.attempt)
                optimizer.step(change(iteration, gradient))
        return flat(optimizer.params), attempts


def holding(wait):
    """Make a loss whose backward pass calls a function with the piece's first input before it ends."""
    caller = threading.current_thread()

    def pause(first):
        # What JAX runs in the caller's thread has all that it needs: then nobody could push meanwhile.
        if threading.current_thread() is not caller:
            wait(float(first))
        return np.zeros((), np.int32)

    @jax.custom_vjp
    def held(kernel, inputs):
        return kernel

    def backward(inputs, gradient):
        # It needs the gradient, so that it comes after the gradients of later layers.
        first = inputs[0, 0] + 0 * gradient[0, 0]
        zero = jax.pure_callback(pause, jax.ShapeDtypeStruct((), jnp.int32), first.astype(jnp.float32))
        return gradient + zero, jnp.zeros_like(inputs)

    held.defvjp(lambda kernel, inputs: (kernel, inputs), backward)

    def slow_losses(params, batch):
        # A forward pass that is still under way when the parts after it are called.
        square = jax.lax.fori_loop(0, 20, lambda _, a: jnp.tanh(a @ a), jnp.full((300, 300), batch[0][0, 0]))
        return losses(params, batch, held) + 0 * jax.lax.stop_gradient(square[0, 0])

    return slow_losses


@pytest.mark.ci
@pytest.mark.parametrize(("shards", "micro"), [(1, None), (3, 4)], ids=["pieces", "micro-batches"])
def test_a_gradient_arrives_while_others_are_computed(wait_until, shards, micro):
    """Each shard has a part of it before the backward pass ends, and none has all before the step."""
    inputs, _ = make_data()
    batches = [part for epoch in range(EPOCHS) for part in np.split(permutation(SPEC, epoch), 8)]
    first_of_last_piece = [float(inputs[batch[8], 0].astype(np.float32)) for batch in batches]
    waited = []

    def wait(first):
        iteration = session.assignment.iteration
        if iteration >= TRIALS and first == first_of_last_piece[iteration]:
            wait_until(lambda: all(services.arrived()), "the first buckets", seconds=60)
            waited.append(first)

    def look(iteration):
        assert not services.complete()

    with OpenServices(1, shards) as services:
        session = services.session("w")
        parameters, attempts = train(session, loss_fn=holding(wait), before_step=look, micro=micro)
    assert waited
    assert attempts == {0}
    np.testing.assert_allclose(parameters, train_alone(), rtol=0, atol=1e-12)


@pytest.mark.ci
@pytest.mark.parametrize("change", [copy, scale, scale_late], ids=lambda change: change.__name__)
def test_what_changes_gradients_afterwards_is_in_the_step(change, caplog):
    """Whatever a script does to gradients before the step, the result is one process's."""
    caplog.set_level(logging.INFO)
    trained = []
    with OpenServices(2, 2) as services:
        sessions = [services.session(name) for name in ("w0", "w1")]
        in_threads(*(lambda s=session: trained.append(train(s, change)) for session in sessions))
    alone = train_alone(change)
    for parameters, attempts in trained:
        np.testing.assert_allclose(parameters, alone, rtol=0, atol=1e-12)
        assert (max(attempts) > 0) == (change is scale_late), "only what had been pushed has to be taken back"
    said = "are pushed by optimizer.step(), not while the backward pass runs" in caplog.text
    assert said == (change in (scale, scale_late))


@pytest.mark.ci
def test_a_saved_state_does_not_depend_on_buckets_and_shards():
    """One that is saved on three shards is resumed from on two, whose order is another."""

    def half(epoch, params, state, shards):
        with OpenServices(1, shards) as services, jax.enable_x64(True):
            session = services.session("w")
            indices = permutation(SPEC, epoch)
            loader = DataLoader(tuple(array[indices] for array in make_data()), BATCH, session=session)
            step = value_and_grad(losses, 4)
            rule = sgd(0.1, momentum=0.9)
            optimizer = distribute(rule, params, loader, step, state=state, bucket_cap_mb=BUCKET_MB)
            for batch in loader:
                optimizer.step(step(optimizer.params, batch)[1])
            return optimizer.params, optimizer.state_dict()

    params, state = half(0, make_params(), None, 3)
    params, state = half(1, params, state, 2)
    np.testing.assert_allclose(flat(params), train_alone(), rtol=0, atol=1e-12)
    assert state["steps"] == 16


def test_a_function_of_jax_itself_is_refused():
    """Its gradients cannot be had one after the other."""
    with (
        OpenServices(1) as services,
        pytest.raises(InvalidRequestError, match=r"evenpace\.jax\.value_and_grad"),
    ):
        train(services.session("w"), value_and_grad=jax.value_and_grad(losses))
