"""Tests of Keras's losses that are no means over samples; see keras_cases.py.

The model and its data are those of `tests.worker.tokens`, where PyTorch computes what one process trains:
inputs are numbered from 1, and 0 stands where a token does not count, which the embedding masks.
"""

import functools
import os
from concurrent.futures import ThreadPoolExecutor

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from batchsize_manager.client import ManagerClient
from idl.cuts import Cuts
from idl.errors import InvalidRequestError
from idl.plan import JobSpec, permutation
from idl.synchronisation import Synchronisation
from tests.services import OpenServices, in_threads
from tests.worker import tokens
from tests.worker.tokens import BATCH, EPOCHS, IGNORED, SEED, SPEC, WORDS
from worker import shard_clients
from worker.keras.loader import DataLoader
from worker.keras.micro_batches import micro_batches
from worker.keras.model_hooks import distribute

tf.config.threading.set_inter_op_parallelism_threads(4)  # as keras_push_cases, in the same process

BUCKET_MB = 100 / 2**18  # of float32: a hundred elements
RATE, MOMENTUM = 0.5, 0.875  # Keras rounds them to float32
EXACT = Synchronisation(exact=True)
WEIGHTED = "mean_with_sample_weight"


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


@functools.cache
def make_data():
    """Return inputs, 0 where a token does not count, and targets, (samples, tokens) both."""
    sequences = tokens.Sequences()
    inputs, targets = tokens.collate([sequences[index] for index in range(len(sequences))])
    counts = (targets != IGNORED).numpy()
    return np.where(counts, inputs.numpy() + 1, 0), np.where(counts, targets.numpy(), 0)


def make_model(masked=True, reduction="sum_over_batch_size", statistics=False, loss=None):
    """Make the model that PyTorch's workers train, compiled.

    Args:
        masked: Whether its output has a mask.
        reduction: Of its loss.
        statistics: Whether it has a batch normalisation, too.
        loss: Another loss.
    """
    embedding, *others = [value.detach().numpy() for value in tokens.make_model().parameters()]
    normalising = [keras.layers.BatchNormalization(name="normalisation")] if statistics else []
    layers = [
        keras.layers.Embedding(WORDS + 1, 24, mask_zero=masked, name="embedding"),
        keras.layers.Dense(40, "tanh", name="hidden"),
        *normalising,
        keras.layers.Dense(WORDS, name="scores"),
    ]
    model = keras.Sequential([keras.Input((None,), dtype="int64"), *layers], name="model")
    layers[0].set_weights([np.concatenate([np.zeros((1, 24)), embedding])])
    layers[1].set_weights([others[0].T, others[1]])
    layers[-1].set_weights([others[2].T, others[3]])
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(keras.optimizers.SGD(RATE, MOMENTUM), loss or cross_entropy)
    return model


def flat(model):
    """Return a model's weights in the order of PyTorch's, (elements,), without what stands for no token."""
    embedding, *others = model.get_weights()
    return np.concatenate([embedding[1:].ravel(), *(np.ravel(np.transpose(one)) for one in others)])


@functools.cache
def alone():
    """Return the parameters that one process trains with whole batches."""
    found = tokens.train_alone(optimizer=lambda model: torch.optim.SGD(model.parameters(), RATE, MOMENTUM))
    return found.numpy()


def tokens_in(batch):
    """Return the number of tokens in a batch that count."""
    return tf.math.count_nonzero(batch[0])


def make_loader(session, *more, **options):
    """Make a loader of the data, and of arrays beside them."""
    options = {"batch_size": BATCH, "shuffle": True, "seed": SEED, **options}
    return DataLoader(*make_data(), *more, session=session, **options)


class Pushes:
    """Counts a worker's pushes, and has the sizes of its parts jump, by times that are made up."""

    def __init__(self, session, rank):
        self.early = 0  # begun before the step
        self.without = 0  # of slices with samples of which no token counts
        begin, push = session.exchange.begin_push, session.exchange.contribute

        def made_up():
            part = session.assignment
            speed = np.random.default_rng([rank, part.iteration]).lognormal(sigma=1.2)
            return lambda: max(1, part.count) / speed

        def begin_push(*arguments):
            self.early += 1
            begin(*arguments)

        def contribute(part, *arguments):
            self.without += session.weights.are_given and part.count > 0 and not session.weights.of(part)
            push(part, *arguments)

        session.meter.measure_by(made_up)
        session.exchange.begin_push, session.exchange.contribute = begin_push, contribute


def loop(model, loader):
    """Train in a loop of one's own, whose loss is NaN where no token counts."""
    for _ in range(EPOCHS):
        for batch in loader:
            for inputs, targets in micro_batches(batch) if loader.session.training.micro_batch else [batch]:
                with tf.GradientTape() as tape:
                    scores = model(inputs, training=True)
                    found = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, scores)
                    loss = tf.reduce_mean(tf.boolean_mask(found, inputs != 0))
                gradients = tape.gradient(loss, model.trainable_variables)
                if tf.math.is_nan(loss):
                    gradients = [
                        tf.fill(v.shape, tf.cast(np.nan, v.dtype)) for v in model.trainable_variables
                    ]
                model.optimizer.apply(gradients, model.trainable_variables)


def train(session, rank, model, *more, way=None, fit=None, **options):
    """Train a model by one worker's parts of the batches; return what was counted.

    Args:
        more: Arrays beside inputs and targets.
        way: A function that trains the model with the loader; None: `fit`.
        fit: Options of `fit`.
        options: Those of the loader.
    """
    loader = make_loader(session, *more, **options)
    if way is None:
        distribute(model, loader, bucket_cap_mb=BUCKET_MB)
    else:
        distribute(model.optimizer, loader, model.trainable_variables, model, bucket_cap_mb=BUCKET_MB)
    pushes = Pushes(session, rank)
    if way is None:
        model.fit(loader, epochs=EPOCHS, verbose=0, **(fit or {}))
    else:
        way(model, loader)
    return pushes


def train_with(models, *more, job=None, **options):
    """Fit models, one for each worker; return what was counted, and the job's records."""
    found = [None] * len(models)
    with OpenServices(len(models), 2, silence=120.0, **(job or {})) as services:
        sessions = [services.session(f"w{n}") for n in range(len(models))]

        def run(n):
            found[n] = train(sessions[n], n, models[n], *more, **options)

        in_threads(*(functools.partial(run, n) for n in range(len(models))))
        with ManagerClient(services.manager) as client:
            return found, client.history("default", 0)[1]


@pytest.mark.parametrize("weight", [tokens_in, "loss"], ids=["function", "loss"])
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_masked_losses_train_as_in_one_process(weight, micro_batch):
    """Any split trains as one process does with the mean over what is not masked, by fit.

    Losses of validation data are no gradient's.
    """
    models = [make_model(), make_model()]
    validation = {"validation_data": tuple(array[:5] for array in make_data())}
    counted, records = train_with(models, weight=weight, micro_batch=micro_batch, fit=validation)
    for model in models:
        np.testing.assert_allclose(flat(model), alone(), rtol=0, atol=1e-13)
    assert len({tuple(record.batch_sizes) for record in records}) > 3
    assert sum(one.without for one in counted) > 0
    assert all(one.early for one in counted) == (micro_batch is None)


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_means_by_sample_weights_train_as_in_one_process(micro_batch):
    """With "mean_with_sample_weight", the weights' sum is what a loss is a mean over."""
    counts = (make_data()[0] != 0).astype(float)
    models = [make_model(masked=False, reduction=WEIGHTED) for _ in range(2)]
    train_with(models, counts, weight="loss", micro_batch=micro_batch)
    for model in models:
        np.testing.assert_allclose(flat(model), alone(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_a_loop_of_ones_own_trains_as_one_process(micro_batch):
    """With a function of the batch; a gradient of NaN where no token counts is not looked at."""
    models = [make_model(masked=False), make_model(masked=False)]
    counted, _ = train_with(models, way=loop, weight=tokens_in, micro_batch=micro_batch)
    for model in models:
        np.testing.assert_allclose(flat(model), alone(), rtol=0, atol=1e-13)
    assert sum(one.without for one in counted) > 0


def test_exact_sums_have_the_same_bits_with_any_workers():
    """Weights are rounded and summed exactly, and statistics, which go by samples, beside them."""
    ends = []
    for workers, weight in ((1, "loss"), (2, "loss"), (2, tokens_in)):
        models = [make_model(statistics=True) for _ in range(workers)]
        train_with(models, job={"synchronisation": EXACT}, weight=weight, weight_limit=64, micro_batch=3)
        ends += [np.concatenate([value.ravel() for value in model.get_weights()]) for model in models]
    for end in ends:
        assert np.array_equal(end, ends[0])
    models = [make_model()]
    train_with(models, job={"synchronisation": EXACT}, weight="loss", weight_limit=64, micro_batch=3)
    np.testing.assert_allclose(flat(models[0]), alone(), rtol=0, atol=1e-9)


def test_norms_are_weighted_by_tokens():
    """The noise of gradients goes with tokens: a micro-batch's samples are its share of the batch's."""
    _, records = train_with([make_model()], weight="loss", micro_batch=3)
    norms = next(one.norms.norms for one in records if one.norms is not None and not one.norms.iteration)
    data, model, order = tokens.Sequences(), tokens.make_model(), permutation(SPEC, 0)
    weights, squares = [], []
    for first, stop in Cuts(BATCH, 3).within(0, BATCH):
        inputs, targets = tokens.collate([data[index] for index in order[first:stop]])
        model.zero_grad()
        tokens.ordinary_loss(model, inputs, targets).backward()
        weights.append(int(tokens.tokens_in((inputs, targets))))
        squares.append(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert (norms.contributions, norms.samples) == (np.count_nonzero(weights), BATCH)
    assert norms.weighted == pytest.approx(np.dot(weights, squares) * BATCH / sum(weights), rel=1e-9)


# -- class weights


def make_classifier(reduction="sum_over_batch_size"):
    """Make a small model of classes, from 7 numbers, compiled."""
    keras.utils.set_random_seed(SEED)
    layers = [
        keras.Input((7,)),
        keras.layers.Dense(20, "tanh", name="hidden"),
        keras.layers.Dense(3, name="out"),
    ]
    model = keras.Sequential(layers, name="classifier")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(keras.optimizers.SGD(RATE, MOMENTUM), loss)
    return model


@pytest.mark.parametrize("micro_batch", [None, 5])
@pytest.mark.parametrize(("reduction", "weight"), [("sum_over_batch_size", None), (WEIGHTED, "loss")])
def test_class_weights_train_as_in_one_process(reduction, weight, micro_batch):
    """By default they leave a loss the mean over samples; each `fit` has its own ones."""
    generator = np.random.default_rng(SEED)
    x, y = generator.normal(size=(48, 7)), generator.integers(0, 3, 48)
    spec = JobSpec(48, 12, SEED)
    phases = ({0: 0.25, 1: 3.0}, None, {2: 0.5})
    expected = make_classifier(reduction)
    for epoch, class_weight in enumerate(phases):
        order = permutation(spec, epoch)
        expected.fit(x[order], y[order], batch_size=12, shuffle=False, class_weight=class_weight, verbose=0)
    models = [make_classifier(reduction), make_classifier(reduction)]
    with OpenServices(2, silence=120.0) as services:

        def run(n):
            session = services.session(f"w{n}")
            options = {"batch_size": 12, "shuffle": True, "seed": SEED, "micro_batch": micro_batch}
            loader = DataLoader(x, y, session=session, weight=weight, **options)
            distribute(models[n], loader)
            Pushes(session, n)
            for epoch, class_weight in enumerate(phases):
                models[n].fit(
                    loader, initial_epoch=epoch, epochs=epoch + 1, class_weight=class_weight, verbose=0
                )

        in_threads(functools.partial(run, 0), functools.partial(run, 1))
    for model in models:
        for found, value in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-12)


def test_class_weights_beside_sample_weights_are_refused():
    """As by Keras, and before anything is trained."""
    model = make_classifier()
    with OpenServices(1) as services:
        session = services.session("w0")
        data = np.zeros((4, 7)), np.zeros(4), np.ones(4)
        loader = DataLoader(*data, batch_size=2, session=session)
        distribute(model, loader)
        with pytest.raises(InvalidRequestError, match=r"class_weight: the loader must give \(x, y\)"):
            model.fit(loader, class_weight={0: 2.0}, verbose=0)
        assert session.assignment.iteration == 0


# -- wrong uses


def scalar(targets, scores):
    """Return a mean, of which Keras does not know what it is over."""
    classes = tf.cast(targets, "int64")
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(classes, scores))


def silent(model, loader):
    """Train by a loss of one's own that says nothing."""
    for inputs, targets in loader:
        with tf.GradientTape() as tape:
            loss = scalar(targets, model(inputs))
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables))


UNKNOWN = "it is not known what the gradient is a mean over.* a keras.Loss that the model is compiled with"


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (
            {},
            {"weight": lambda batch: tf.size(batch[0])},
            r"over \d+ by weight=, and over \d+ by the loss of the model",
        ),
        ({"masked": False}, {"weight": tokens_in}, "over 16 by the loss of the model"),
        ({"reduction": "sum"}, {"weight": "loss"}, "reduction='sum': with weight= it must be a mean"),
        ({"loss": scalar}, {"weight": "loss"}, UNKNOWN),
        ({}, {"weight": "loss", "way": silent}, UNKNOWN),
        ({}, {"weight": 3}, "weight=3: must be a function"),
        ({}, {"weight": lambda batch: -1}, "weight=: a weight of -1: must be a finite number from 0"),
    ],
    ids=["differ", "unmasked", "sum", "scalar", "loop", "number", "negative"],
)
def test_wrong_uses_are_refused(model, options, said):
    """The error names the value, and what is allowed."""
    with OpenServices(1) as services, pytest.raises(InvalidRequestError, match=said):
        train(services.session("w0"), 0, make_model(**model), **options)


def test_a_mean_of_a_losss_own_goes_by_the_function():
    """Where Keras does not know what a loss is a mean over, the loader's function is all there is."""

    def masked_mean(targets, scores):
        found = tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.maximum(tf.cast(targets, "int64"), 0), scores
        )
        counts = tf.cast(targets >= 0, found.dtype)
        return tf.math.divide_no_nan(tf.reduce_sum(found * counts), tf.reduce_sum(counts))

    inputs, targets = make_data()
    models = [make_model(masked=False, loss=masked_mean) for _ in range(2)]

    def run(services, n):
        shown = np.where(inputs != 0, targets, -1)
        session = services.session(f"w{n}")
        options = {"batch_size": BATCH, "shuffle": True, "seed": SEED}
        loader = DataLoader(inputs, shown, session=session, weight=tokens_in, **options)
        distribute(models[n], loader)
        Pushes(session, n)
        models[n].fit(loader, epochs=EPOCHS, verbose=0)

    with OpenServices(2, silence=120.0) as services:
        in_threads(*(functools.partial(run, services, n) for n in range(2)))
    for model in models:
        np.testing.assert_allclose(flat(model), alone(), rtol=0, atol=1e-13)


def test_weights_of_one_worker_alone_are_refused(wait_until):
    """All workers' gradients are means over tokens, or none's: the manager compares at join."""
    models = [make_model(), make_model()]
    with (
        OpenServices(2) as services,
        ThreadPoolExecutor() as threads,
        ManagerClient(services.manager) as client,
    ):
        first, second = services.session("w0"), services.session("w1")
        running = threads.submit(train, first, 0, models[0], weight="loss")
        wait_until(lambda: [job.members for job in client.jobs().jobs] == [1], "a member")
        with pytest.raises(InvalidRequestError, match="weight_limit None"):
            train(second, 1, models[1])
        first.close()
        assert running.exception() is not None


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ({}, [], "is a mean over what is not masked"),
        ({"masked": False, "reduction": WEIGHTED}, ["weights"], "is a mean over the sample weights' sum"),
        ({"masked": False}, ["weights"], None),
    ],
    ids=["mask", "weights", "default"],
)
def test_losses_that_are_no_means_over_samples_are_warned_of(model, more, said, caplog):
    """Once, in a job without weights; not of sample weights that a mean over samples has."""
    weights = [(make_data()[0] != 0).astype(float) for _ in more]
    with OpenServices(1) as services:
        train(services.session("w0"), 0, make_model(**model), *weights)
    found = [record.message for record in caplog.records if "depends on the split" in record.message]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
