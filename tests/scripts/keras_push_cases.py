"""Tests of gradients that Keras on TensorFlow pushes while it computes others; see keras_cases.py.

A layer of the model holds its backward pass up, amid the step, until the first buckets have arrived.
"""

import functools
import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import numpy as np
import pytest
import tensorflow as tf

from idl.plan import JobSpec, permutation
from tests.services import OpenServices
from worker import shard_clients
from worker.keras.loader import DataLoader
from worker.keras.micro_batches import micro_batches
from worker.keras.model_hooks import distribute

tf.config.threading.set_inter_op_parallelism_threads(4)  # one of them is held up

SAMPLES, BATCH, SEED, EPOCHS = 48, 12, 3, 2
SPEC = JobSpec(SAMPLES, BATCH, SEED)
BUCKET_MB = 500 / 2**18  # of float32: five hundred elements
INPUTS = np.random.default_rng(SEED).normal(size=(SAMPLES, 7))
TARGETS = np.random.default_rng(SEED + 1).normal(size=(SAMPLES, 3))


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Compute in float64, and have these few parameters pulled early, too."""
    monkeypatch.setattr(shard_clients, "LEAST_EARLY_PULL", 0)
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def nothing():
    """Do nothing."""


class Hold(keras.layers.Layer):
    """The identity, in whose backward pass a function is called.

    Args:
        during: The function.
    """

    def __init__(self, during):
        super().__init__(name="hold")
        self._during = during

    def call(self, inputs):
        """Return the inputs."""

        @tf.custom_gradient
        def identity(values):
            def backward(upstream):
                # Without effects, as TensorFlow has it: such operations do not wait for each other.
                held = tf.numpy_function(self._held, [upstream], upstream.dtype, stateful=False)
                return tf.ensure_shape(held, upstream.shape)

            return tf.identity(values), backward

        return identity(inputs)

    def _held(self, values):
        self._during()
        return values


def make_model(during=nothing):
    """Make the same model each time: its last two layers are buckets before what `during` holds up."""
    keras.utils.set_random_seed(SEED)
    layers = [
        keras.Input((7,), name="input"),
        keras.layers.Dense(300, "tanh", name="first"),
        keras.layers.BatchNormalization(name="normalisation"),
        Hold(during),
        *(keras.layers.Dense(300, "tanh", name=name) for name in ("second", "third")),
        keras.layers.Dense(3, name="last"),
    ]
    return keras.Sequential(layers, name="model")


def make_optimizer():
    """Make an optimiser with a learning rate that changes, and weight decay of some variables."""
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([1, 2, 4, 6], [0.1, 0.08, 0.05, 0.04, 0.02])
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, weight_decay=0.01)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def leave(gradients):
    """Change nothing."""
    return gradients


def clip(gradients):
    """Clip by the norm of all gradients."""
    return tf.clip_by_global_norm(gradients, 0.1)[0]


def make_step(model, optimizer, change=leave):
    """Make a step of a loop of one's own."""

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = change(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return step


def train_whole(model, optimizer, epochs, change=leave):
    """Train in one process on whole batches, eagerly: tracing takes longer than so few steps."""
    step = make_step(model, optimizer, change)
    for epoch in epochs:
        for batch in permutation(SPEC, epoch).reshape(-1, BATCH):
            step(tf.constant(INPUTS[batch]), tf.constant(TARGETS[batch]))


@functools.cache
def train_alone(change=leave):
    """Return the variables of one process."""
    model = make_model()
    train_whole(model, make_optimizer(), range(EPOCHS), change)
    return flat(model.weights)


def flat(variables):
    """Return the variables' values, (elements,)."""
    return np.concatenate([np.reshape(v, -1).astype(float) for v in variables])


def make_loader(session, **options):
    """Make a loader of the training data."""
    options = {"batch_size": BATCH, "shuffle": True, "seed": SEED, **options}
    return DataLoader(INPUTS, TARGETS, session=session, **options)


def train(session, model, way="loop", change=leave, **options):
    """Train a model with one worker's part of each batch; return its variables, and the session's attempts.

    Args:
        way: "loop" for a traced step, "fit" for Keras's.
        change: Changes gradients before the step.
        options: Of `distribute`.
    """
    optimizer, loader = make_optimizer(), make_loader(session)
    options = {"bucket_cap_mb": BUCKET_MB} | options
    attempts = set()
    if way == "fit":
        model.compile(optimizer, "mse")
        distribute(model, loader, **options)
        for _ in range(EPOCHS):
            model.fit(loader, verbose=0)
        return flat(model.weights), {session.assignment.attempt}
    distribute(optimizer, loader, model.trainable_variables, model, **options)
    step = tf.function(make_step(model, optimizer, change), input_signature=loader.signature)
    for _ in range(EPOCHS):
        for x, y in loader:
            attempts.add(session.assignment.attempt)
            step(x, y)
    return flat(model.weights), attempts


def assert_equal(found, expected):
    """Assert that arrays are equal, to rounding."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("way", "shards"), [("loop", 3), ("fit", 3)])
def test_gradients_arrive_while_the_backward_pass_computes(way, shards, wait_until, caplog):
    """Each shard has a part of the gradient amid the backward pass, and the step is one process's."""
    seen = []

    def look():
        wait_until(lambda: len(services.arrived()) == shards and all(services.arrived()), "buckets", 60)
        seen.append(services.complete())

    with OpenServices(1, shards) as services:
        found, attempts = train(services.session("w"), make_model(look), way)
    assert_equal(found, train_alone())
    assert attempts == {0}
    assert seen == [False] * (EPOCHS * SAMPLES // BATCH)
    assert "load_weights" not in caplog.text


@pytest.mark.parametrize("options", [{"change": clip}, {"bucket_cap_mb": None}, {"bucket_cap_mb": 1.0}])
def test_what_waits_for_all_gradients_is_pushed_after_them(options):
    """Clipping by the global norm, and a model of one bucket: nothing arrives amid the backward pass."""
    arrived = []
    with OpenServices(1, 3) as services:
        model = make_model(lambda: arrived.extend(services.arrived()))
        found, attempts = train(services.session("w"), model, **options)
        orders = {job.shard.layout.order for shard in services.shards for job in shard.jobs}
    assert_equal(found, train_alone(options.get("change", leave)))
    assert attempts == {0}
    assert not any(arrived)
    assert (orders == {""}) == ("bucket_cap_mb" in options)


@pytest.mark.parametrize("traced", [True, False])
def test_a_step_that_fails_amid_its_push_may_be_repeated(traced, wait_until):
    """The script's next step takes the place of one that has failed after the first bucket was pushed."""
    failed = []

    def fail(gradients):
        def check(gradient):
            if session.assignment.iteration == 2 and not failed:
                wait_until(lambda: all(services.arrived()) or not traced, "buckets", 60)
                failed.append(session.assignment.attempt)
                raise ArithmeticError("the script has failed")
            return gradient

        first = tf.numpy_function(check, [gradients[0]], "float64", stateful=False)
        return [tf.ensure_shape(first, gradients[0].shape), *gradients[1:]]

    with OpenServices(1, 2) as services:
        session = services.session("w")
        model, optimizer, loader = make_model(), make_optimizer(), make_loader(session)
        distribute(optimizer, loader, model=model, bucket_cap_mb=BUCKET_MB)
        step = make_step(model, optimizer, fail)
        step = tf.function(step, input_signature=loader.signature) if traced else step
        statistics = model.get_layer("normalisation").non_trainable_variables
        for _ in range(EPOCHS):
            for x, y in loader:
                kept = [v.numpy() for v in statistics]
                try:
                    step(x, y)
                except (tf.errors.OpError, ArithmeticError):
                    for variable, value in zip(statistics, kept, strict=True):
                        variable.assign(value)
                    step(x, y)
        found = flat(model.weights)
        assert session.assignment.attempt == traced  # what an eager script has not pushed needs no other
    assert failed == [0]
    assert_equal(found, train_alone())


def test_a_step_without_a_batch_pushes_nothing():
    """It is refused, and nothing of it is left for the next batch's step."""
    with OpenServices(1, 2) as services:
        session = services.session("w")
        model, optimizer, loader = make_model(), make_optimizer(), make_loader(session)
        distribute(optimizer, loader, model.trainable_variables, model, bucket_cap_mb=BUCKET_MB)
        step = tf.function(make_step(model, optimizer), input_signature=loader.signature)
        for _ in range(EPOCHS):
            for x, y in loader:
                step(x, y)
                kept = [v.numpy() for v in model.weights]
                with pytest.raises(tf.errors.OpError, match="samples were not loaded"):
                    step(x, y)
                for variable, value in zip(model.weights, kept, strict=True):
                    variable.assign(value)
        assert session.assignment.attempt == 0
    assert_equal(flat(model.weights), train_alone())


def test_an_optimisers_state_comes_and_goes_in_the_flat_order():
    """An optimiser that has taken steps goes on from its state, and gets the job's to be saved."""
    model, optimizer = make_model(), keras.optimizers.AdamW(0.01, weight_decay=0.1)
    train_whole(model, optimizer, [0])
    with OpenServices(1, 3) as services:
        loader = make_loader(services.session("w"))
        distribute(optimizer, loader, model.trainable_variables, model, bucket_cap_mb=BUCKET_MB)
        step = tf.function(make_step(model, optimizer), input_signature=loader.signature)
        for x, y in loader:
            step(x, y)
        optimizer.save_own_variables({})
    alone, own = make_model(), keras.optimizers.AdamW(0.01, weight_decay=0.1)
    train_whole(alone, own, [0, 0])
    assert_equal(flat(model.weights), flat(alone.weights))
    assert_equal(flat(optimizer.variables), flat(own.variables))


def test_micro_batches_are_pushed_by_the_step():
    """They are summed first; statistics are each time as before the first."""
    found, arrived = [], []
    for size in (BUCKET_MB, None):
        with OpenServices(1, 3) as services:
            model = make_model(lambda s=services: arrived.extend(s.arrived()))
            optimizer, loader = make_optimizer(), make_loader(services.session("w"), micro_batch=5)
            distribute(optimizer, loader, model.trainable_variables, model, bucket_cap_mb=size)
            step = tf.function(make_step(model, optimizer), input_signature=loader.signature)
            statistics = model.get_layer("normalisation").non_trainable_variables
            for batch in loader:
                kept = flat(statistics)
                for x, y in micro_batches(batch):
                    assert np.array_equal(flat(statistics), kept)
                    step(x, y)
            found.append(flat(model.weights))
    assert_equal(*found)
    assert not any(arrived)
    assert np.abs(found[0] - flat(make_model().weights)).max() > 0.01
