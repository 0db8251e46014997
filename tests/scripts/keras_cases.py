"""Tests of the Keras adapter that need Keras on TensorFlow; test_keras_adapter.py runs them in a process.

Other tests of the suite have Keras on PyTorch, and a process has one of the two.
"""

import collections
import contextlib
import os
import random
import re
import threading

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsize_manager.client import ManagerClient
from idl.errors import InvalidRequestError, NotMemberError
from idl.synchronisation import Synchronisation
from ps.optimizers import make_optimizer
from tests.services import OpenServices
from tests.worker.contract import Contract
from worker.keras.loader import DataLoader
from worker.keras.micro_batches import micro_batches
from worker.keras.model_hooks import distribute
from worker.keras.optimizer_options import describe_keras
from worker.keras.randomness import ModelSeeds
from worker.keras.saving import Checkpoint, load, save
from worker.session import Session, SessionConfig

tf.config.threading.set_inter_op_parallelism_threads(4)  # as keras_push_cases, in the same process

NOWHERE = SessionConfig(("127.0.0.1", 1), (("127.0.0.1", 1),))


@pytest.fixture(scope="module")
def services():
    """Services whose jobs have one worker."""
    with OpenServices(1, silence=120.0) as running:  # who is only held up keeps its part
        yield running


@pytest.fixture
def session(services, request):
    """This process as the only worker of a job of its own."""
    name = request.node.name.partition("[")[0]
    with_services = Session(
        SessionConfig(services.manager, tuple(services.addresses), job=name, barrier_timeout=240)
    )
    yield with_services
    with_services.close()


# -- what every adapter does


class Sgd:
    """Keras's SGD in an eager loop; see `tests.worker.contract.Sgd`."""

    def __init__(self, start, loader, rates=(1.0,), dtypes=None, **options):
        dtypes = dtypes or ["float32"] * len(start)
        self._variables = [tf.Variable(tf.cast(*both)) for both in zip(start, dtypes, strict=True)]
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay(list(range(len(rates) - 1)), list(rates))
        rate = schedule if len(rates) > 1 else rates[0]
        self._optimizer = distribute(keras.optimizers.SGD(rate), loader, self._variables, **options)

    @property
    def values(self):
        """The variables."""
        return [tf.cast(variable, "float64").numpy() for variable in self._variables]

    @property
    def dtypes(self):
        """The variables' types."""
        return [variable.dtype.name for variable in self._variables]

    def step(self, *gradients):
        """Take a step."""
        pairs = zip(gradients, self._variables, strict=True)
        self._optimizer.apply([tf.cast(gradient, variable.dtype) for gradient, variable in pairs])


class TestKeras(Contract):
    """With DataLoader and distribute of `evenpace.keras`."""

    loader = DataLoader
    sgd = Sgd


# -- the parameter server's optimisers


def numbers(least, most):
    """Numbers that float32 has, as Keras's learning rate is one."""
    return st.floats(least, most, width=32)


shared = {"weight_decay": st.none() | numbers(0.0, 0.5)}
adam = {
    **shared,
    "beta_1": st.floats(0.0, 0.99),
    "beta_2": st.floats(0.5, 0.9999),
    "epsilon": st.floats(1e-8, 0.1),
    "amsgrad": st.booleans(),
}
optimizers = st.one_of(
    st.fixed_dictionaries({"momentum": st.floats(0.0, 1.0), "nesterov": st.booleans(), **shared}).map(
        lambda options: keras.optimizers.SGD(**options)
    ),
    st.fixed_dictionaries(adam).map(lambda options: keras.optimizers.Adam(**options)),
    st.fixed_dictionaries({**adam, "weight_decay": numbers(0.0, 0.5)}).map(
        lambda options: keras.optimizers.AdamW(**options)
    ),
)


@settings(max_examples=40, deadline=None)
@given(optimizers, st.lists(numbers(0.0, 0.5), min_size=1, max_size=12), st.integers(0, 2**16), st.data())
def test_steps_are_keras_own(optimizer, rates, seed, data):
    """Over many steps with a changing learning rate, the parameters are those of Keras, to rounding."""
    dtype, tolerance = data.draw(st.sampled_from([("float64", 1e-11), ("float32", 2e-4)]))
    generator = np.random.default_rng(seed)
    start = generator.normal(size=7).astype(dtype)
    variable = keras.Variable(start, dtype=dtype)
    flat = torch.from_numpy(start.copy())
    flat.grad = torch.zeros_like(flat)
    name, options = describe_keras(optimizer)
    served = make_optimizer(name, [flat], [{**options, "lr": rates[0]}])
    for rate in rates:
        gradient = generator.normal(size=7).astype(dtype)
        optimizer.learning_rate = rate
        optimizer.apply([tf.constant(gradient)], [variable])
        served.param_groups[0]["lr"] = rate
        flat.grad.copy_(torch.from_numpy(gradient))
        served.step()
    assert np.allclose(flat.numpy(), variable.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (keras.optimizers.RMSprop(), "RMSprop.*SGD, Adam and AdamW of keras.optimizers"),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "LossScaleOptimizer"),
        (keras.optimizers.SGD(clipnorm=1.0), "clipnorm=1.0.*whole batch's gradient"),
        (keras.optimizers.SGD(clipvalue=0.5), "clipvalue=0.5.*whole batch's gradient"),
        (keras.optimizers.Adam(global_clipnorm=2.0), "global_clipnorm=2.0.*whole batch's gradient"),
        (keras.optimizers.Adam(use_ema=True), "use_ema=True"),
        (keras.optimizers.AdamW(gradient_accumulation_steps=4), "gradient_accumulation_steps=4"),
    ],
)
def test_what_the_parameter_server_lacks_is_refused(optimizer, said):
    """Optimisers and options that it has not are named, before anything is connected."""
    loader = DataLoader(np.zeros((4, 1)), batch_size=2, session=Session(NOWHERE))
    with pytest.raises(InvalidRequestError, match=said):  # of which a command prints one line
        distribute(optimizer, loader, [keras.Variable([1.0])])


# -- the data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((), "nothing"),
        ((iter([]),), "list_iterator"),
        ((tf.data.Dataset.range(4),), "map-style"),
        ((np.zeros((4, 1)), np.zeros(3)), r"\[3, 4\] samples"),
    ],
)
def test_bad_data_is_refused(data, said):
    """What no sample can be taken of by its index is named."""
    with pytest.raises(InvalidRequestError, match=said):
        DataLoader(*data, batch_size=2, session=Session(NOWHERE))


class Pairs:
    """A map-style data set."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return {"index": index, "twice": np.full(3, 2.0 * index)}


def test_batches_have_the_datas_structure(session):
    """Dictionaries, tensors and numbers come as tensors, in the order of the plan, with any batch size."""
    x = {"a": np.arange(10).reshape(5, 2), "b": tf.range(5.0)}
    loader = DataLoader(x, np.arange(5) * 10, batch_size=3, session=session)
    assert len(loader) == 2
    assert loader.signature[0]["a"].shape.as_list() == [None, 2]
    distribute(keras.optimizers.SGD(), loader, [variable := keras.Variable([1.0])])
    seen = []
    for inputs, labels in loader:
        seen.append((inputs["a"].numpy().tolist(), inputs["b"].dtype.name, labels.numpy().tolist()))
        loader.session.exchange.gradient.values[:] = 0
        loader.session.finish_iteration()
    assert seen == [
        ([[0, 1], [2, 3], [4, 5]], "float32", [0, 10, 20]),
        ([[6, 7], [8, 9]], "float32", [30, 40]),
    ]
    assert variable.numpy() == 1.0


def test_samples_of_a_data_set_are_stacked():
    """A map-style data set gives batches of its samples' structure."""
    loader = DataLoader(Pairs(), batch_size=2, session=Session(NOWHERE))
    assert loader.spec["twice"] == tf.TensorSpec([None, 3], tf.float32)
    assert loader.signature == (loader.spec,)
    assert loader.first()["index"].numpy().tolist() == [0]


# -- loops of one's own


def begin(session, optimizer, samples=8, batch_size=2):
    """A linear model of one weight, from 0, whose gradient is the mean of the inputs."""
    x = np.arange(1.0, samples + 1)[:, None]
    weight = tf.Variable([[0.0]], name="weight")
    loader = DataLoader(x, batch_size=batch_size, session=session)
    return loader, weight, distribute(optimizer, loader, [weight])


def test_what_a_function_reads_after_the_step_is_new(session):
    """Within one function, variables are read before and after the step in the order of the code."""
    loader, weight, optimizer = begin(session, keras.optimizers.SGD(1.0))

    @tf.function(input_signature=loader.signature)
    def step(x):
        before = tf.identity(weight)
        optimizer.apply([tf.reduce_mean(x, 0, keepdims=True)])
        return before, tf.identity(weight)

    steps = [step(x) for x in loader]
    assert np.allclose([before for before, _ in steps], np.reshape([0, -1.5, -5, -10.5], (4, 1, 1)))
    assert np.allclose([after for _, after in steps], np.reshape([-1.5, -5, -10.5, -18], (4, 1, 1)))


def test_scaled_losses_are_unscaled(session):
    """loss_scale_factor works, as it is the same for each worker's gradient."""
    loader, weight, optimizer = begin(session, keras.optimizers.SGD(1.0, loss_scale_factor=4.0))
    for x in loader:
        optimizer.apply([4.0 * tf.reduce_mean(x, 0, keepdims=True)], [weight])
    assert float(weight[0, 0]) == -18


def test_gradients_of_other_variables_are_refused(session):
    """All trained variables' gradients go in one call, and one of them must be there."""
    _, weight, optimizer = begin(session, keras.optimizers.SGD())
    for gradients, variables in (([None], [weight]), ([tf.ones(1)], [tf.Variable([1.0])]), ([], [])):
        with pytest.raises(ValueError, match="each of the 1 variables that are trained"):
            optimizer.apply(gradients, variables)


def test_variables_without_gradients_stay(session):
    """None, as tape.gradient gives where a variable plays no part, is no change."""
    a, b = keras.Variable([1.0]), keras.Variable([1.0])
    loader = DataLoader(np.zeros((2, 1)), batch_size=2, session=session)
    optimizer = distribute(keras.optimizers.SGD(1.0), loader, [a, b])
    for _ in loader:
        optimizer.apply([tf.ones(1), None], [a, b])
    assert (float(a[0]), float(b[0])) == (0.0, 1.0)


def test_gradients_of_embeddings_are_taken(session):
    """TensorFlow has them of the rows that were looked up alone; the others do not change."""
    table = keras.Variable(np.zeros((5, 1)))
    loader = DataLoader(np.array([1, 3, 3, 4]), batch_size=4, session=session)
    optimizer = distribute(keras.optimizers.SGD(1.0), loader, [table])
    for rows in loader:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table.value, rows))
        gradients = tape.gradient(loss, [table.value])
        assert isinstance(gradients[0], tf.IndexedSlices)
        optimizer.apply(gradients, [table])
    assert table.numpy().reshape(-1).tolist() == [0, -1, 0, -2, -1]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        *(
            ([tf.Variable([1.0]), tf.Variable(tf.zeros(1, dtype), name="odd")], f"odd.* is of {dtype}: ")
            for dtype in ("int32", "bool")
        ),
        ([keras.Variable([1.0], name="kernel")], "kernel has a constraint"),
        (None, r"variables=model\.trainable_variables"),
        ([], "no variables to train"),
    ],
)
def test_what_cannot_be_trained_is_refused(variables, said):
    """Flat arrays would round large integers, and the parameter server would not keep constraints."""
    if "constraint" in said:
        variables[0].constraint = keras.constraints.NonNeg()
    loader = DataLoader(np.zeros((2, 2)), batch_size=2, session=Session(NOWHERE))
    with pytest.raises(ValueError, match=said):
        distribute(keras.optimizers.SGD(), loader, variables)


# -- fit


def make_model(**options):
    """Not built yet."""
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse", **options)
    return model


def regression(session, batch_size=5, **options):
    """A loader of y = x."""
    x = np.arange(12.0)[:, None] / 12
    return DataLoader(x, x, batch_size=batch_size, session=session, **options)


def test_fit_takes_the_loader_alone(session):
    """What Keras would pass over in silence is refused, and so are other data and other checkpoints."""
    model, loader = make_model(), regression(session)
    distribute(model, loader)
    for arguments, options, said in (
        ((loader,), {"sample_weight": np.ones(2)}, "sample_weight"),
        ((loader,), {"batch_size": 2}, "batch_size"),
        ((loader,), {"steps_per_epoch": 2}, "steps_per_epoch"),
        ((loader,), {"validation_split": 0.1}, r"validation_split=0\.1.*validation_data"),
        ((np.zeros((2, 1)), np.zeros((2, 1))), {}, "fit of ndarray"),
        ((loader,), {"callbacks": keras.callbacks.BackupAndRestore("nowhere")}, "BackupAndRestore"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            model.fit(*arguments, **options)


@pytest.mark.parametrize("eagerly", [False, True])
def test_train_on_batch_takes_the_step_of_a_batch(session, eagerly):
    """In a loop of the script's own, parameters are those of Keras alone."""
    one, other = make_model(run_eagerly=eagerly), make_model()
    loader = regression(session)
    distribute(one, loader)
    other.build((None, 1))
    other.set_weights(one.get_weights())
    for _ in loader.epochs(2):
        for x, y in loader:
            loss = one.train_on_batch(x, y)
            assert np.allclose(loss, other.train_on_batch(x, y))
    assert session.assignment.iteration == int(one.optimizer.iterations) == 6
    for ours, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        assert np.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("eagerly", [False, True])
def test_fit_goes_on_where_it_ended(session, eagerly):
    """A second fit has the job's next epochs; callbacks that change the learning rate reach the server."""
    model, loader = make_model(run_eagerly=eagerly), regression(session)
    distribute(model, loader)
    still = keras.callbacks.LearningRateScheduler(lambda epoch: 0.0)
    model.fit(loader, epochs=2, verbose=0)
    assert session.assignment.epoch == 2
    weights = model.get_weights()
    model.fit(loader, epochs=2, verbose=0, callbacks=[still])
    assert session.assignment.epoch == 4
    assert all(np.array_equal(*pair) for pair in zip(weights, model.get_weights(), strict=True))


def test_fit_of_a_model_that_was_changed_is_refused(session):
    """A model of which other layers are to be trained since, and one with another optimiser."""
    model, loader = make_model(), regression(session)
    distribute(model, loader)
    model.layers[0].trainable = False
    with pytest.raises(InvalidRequestError, match=r"bias, .*kernel: trainable was changed after"):
        model.fit(loader, verbose=0)
    model.layers[0].trainable = True
    model.fit(loader, verbose=0)
    model.compile("sgd", "mse")
    with pytest.raises(InvalidRequestError, match="compiled with another optimiser after"):
        model.fit(loader, verbose=0)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_a_model_may_be_compiled_again(session, micro_batch):
    """Another loss, and other metrics, hold from the next fit on, in the same job."""
    model, loader = make_model(), regression(session, micro_batch=micro_batch)
    distribute(model, loader)
    model.fit(loader, verbose=0)
    model.compile(model.optimizer, "mae", metrics=["mse"])
    history = model.fit(loader, epochs=2, verbose=0)
    assert set(history.history) == {"loss", "mse"}
    assert session.assignment.epoch == 3
    assert not model.jit_compile


class Adding(keras.callbacks.Callback):
    """Adds to all weights, as a callback that keeps them within bounds does."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def on_train_batch_end(self, batch, logs=None):
        """See `keras.callbacks.Callback`."""
        self.model.set_weights([weight + self.change for weight in self.model.get_weights()])


@pytest.mark.parametrize(
    ("dtype", "change", "within"),
    [("float32", 1.0, False), ("float16", 0.0, False), ("float16", 1.0, True), ("float32", 0.0, True)],
)
def test_weights_set_after_distribute_are_warned_of(services, caplog, dtype, change, within):
    """Other values than the parameter server's are lost with the next step, which is said once."""
    model = keras.Sequential([keras.layers.Dense(1, dtype=dtype, name="dense")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    job = f"{dtype}{change}"
    config = SessionConfig(services.manager, tuple(services.addresses), job=job, barrier_timeout=240)
    with contextlib.closing(Session(config)) as session:
        distribute(model, loader := regression(session))
        model.fit(loader, verbose=0, callbacks=[Adding(change)] if within else [])
        if not within:
            model.set_weights([weight + change for weight in model.get_weights()])
            model.fit(loader, epochs=2, verbose=0)
    said = [record.message for record in caplog.records if "load_weights" in record.message]
    assert len(said) == (1 if change else 0)


def test_fit_of_a_model_that_cannot_be_is_refused(session):
    """A model without an optimiser, and one that takes several steps at once."""
    loader = regression(session)
    with pytest.raises(InvalidRequestError, match=r"model\.compile"):
        distribute(keras.Sequential([keras.layers.Dense(1)]), loader)
    with pytest.raises(InvalidRequestError, match="steps_per_execution=2"):
        distribute(make_model(steps_per_execution=2), loader)


@pytest.mark.parametrize("name", ["fit", "evaluate", "predict"])
def test_a_model_that_was_not_distributed_cannot_use_the_loader(session, name):
    """The error names distribute, and no call that Keras users do not have."""
    model, loader = make_model(), regression(session)
    with pytest.raises(InvalidRequestError, match="call distribute before"):
        getattr(model, name)(loader, verbose=0)


@pytest.mark.parametrize("name", ["evaluate", "predict"])
def test_the_loader_is_for_training_alone(session, name):
    """Of a model that was distributed, or another one; other data are as before."""
    model, other, loader = make_model(), make_model(), regression(session)
    distribute(model, loader)
    with pytest.raises(InvalidRequestError, match=rf"model\.{name} of an evenpace loader: .* arrays or"):
        getattr(model, name)(loader, verbose=0)
    x = np.arange(4.0)[:, None]
    model.fit(loader, verbose=0, validation_data=(x, x))
    model.evaluate(x, x, verbose=0)
    assert model.predict(x, verbose=0).shape == (4, 1)
    with pytest.raises(
        InvalidRequestError, match=r"train on each batch, by model\.fit.* other data"
    ) as raised:
        getattr(other, name)(loader, verbose=0)
    assert "optimizer.step" not in str(raised.value)


def test_errors_of_the_job_come_out_of_fit(session):
    """What ends the job is raised as what it is, not as an error of TensorFlow's."""
    model, loader = make_model(), regression(session)
    distribute(model, loader)

    class Thrown(keras.callbacks.Callback):
        """Takes the worker out of the job, behind its back."""

        def on_train_batch_begin(self, batch, logs=None):
            session._membership.leave()

    with pytest.raises(NotMemberError):
        model.fit(loader, verbose=0, callbacks=[Thrown()])


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_fit_goes_through_a_batch_again_in_the_same_step(session, micro_batch):
    """A job that is rewound does not get ahead of, or behind, Keras's epochs."""
    model, loader = make_model(), regression(session, micro_batch=micro_batch)
    distribute(model, loader)
    steps = []

    class Rewinding(keras.callbacks.Callback):
        """Has another attempt begun in the second epoch."""

        def on_train_batch_begin(self, batch, logs=None):
            steps.append(session.assignment.iteration)
            if session.assignment.iteration == 4 and session.assignment.attempt == 0:
                session.exchange._shards.fence_from_any_thread(session._membership.recover(0))

    history = model.fit(loader, epochs=3, verbose=0, callbacks=[Rewinding()])
    assert steps == list(range(9))
    assert history.epoch == [0, 1, 2]
    assert (session.assignment.iteration, session.assignment.attempt) == (9, 1)
    assert int(model.optimizer.iterations) == 9


@pytest.mark.parametrize(("size", "batches"), [(2, (5, 6)), (12, (2, 1))])
def test_fit_goes_on_when_batches_have_another_size(services, session, capsys, size, batches):
    """An epoch has the steps that it began with, and later ones as many as they have batches."""
    model, loader = make_model(), regression(session)
    distribute(model, loader)
    first = []

    class Changing(keras.callbacks.Callback):
        """Changes the size in the first batch, and notes where the job's epochs begin."""

        def on_train_batch_begin(self, batch, logs=None):
            if session.assignment.iteration == 0:
                with ManagerClient(services.manager, timeout=60.0) as client:
                    client.set_total_batch_size(session.config.job, size)

        def on_epoch_begin(self, epoch, logs=None):
            assert session.assignment.epoch == epoch
            first.append(session.assignment.iteration)

    history = model.fit(loader, epochs=4, verbose=1, callbacks=[Changing()])
    assert history.epoch == [0, 1, 2, 3]
    assert np.diff(first).tolist() == [batches[0], *[batches[1]] * 2]
    bars = capsys.readouterr().out.replace("\b", "").split("Epoch ")[1:]
    assert len(bars) == 4
    ends = [re.findall(r"(\d+/\d+)\D", bar.split("\n", 1)[1])[-1] for bar in bars]
    assert ends == ["3/3", *[f"{batches[1]}/{batches[1]}"] * 3]
    assert loader.num_batches == batches[1]
    model.fit(loader, epochs=1, verbose=1)
    assert f"{batches[1]}/{batches[1]}" in capsys.readouterr().out


def test_each_micro_batch_of_fit_is_a_contribution_to_the_noise(services, session):
    """The norms in the job's records are those of gradients that are worked out one by one."""
    x = np.arange(12.0)[:, None] / 12
    loader = DataLoader(x, x, batch_size=5, micro_batch=2, session=session)
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    distribute(model, loader)
    records = []

    class Watching(keras.callbacks.Callback):
        """Looks at the records once the last batch has begun, since the job ends with it."""

        def on_train_batch_begin(self, batch, logs=None):
            if session.assignment.iteration == 5:
                with ManagerClient(services.manager, timeout=60.0) as client:
                    records.extend(client.history(session.config.job, 0)[1])

    model.fit(loader, epochs=2, verbose=0, callbacks=[Watching()])
    parameters, expected = np.zeros(2), {}
    for iteration in range(6):
        parts = ([range(3), range(3, 5)], [range(5, 8), range(8, 10)], [range(10, 12)])[iteration % 3]

        def gradient_of(part, parameters=parameters):
            inputs = np.stack([x[list(part), 0], np.ones(len(part))])
            return 2 * inputs @ (parameters @ inputs - inputs[0]) / len(part)

        mean = gradient_of([index for part in parts for index in part])
        weighted = sum(len(part) * np.sum(gradient_of(part) ** 2) for part in parts)
        expected[iteration] = (len(parts), sum(map(len, parts)), weighted, np.sum(mean**2))
        parameters = parameters - 0.1 * mean
    known = [record.norms for record in records if record.norms is not None]
    assert [step.iteration for step in known] == [0, 1, 2, 3]
    for step in known:
        norms = step.norms
        found = (norms.contributions, norms.samples, norms.weighted, norms.squared)
        assert found == pytest.approx(expected[step.iteration], rel=1e-4)


class Enough(keras.callbacks.Callback):
    """Ends fit after two epochs."""

    def on_epoch_end(self, epoch, logs=None):
        """See `keras.callbacks.Callback`."""
        self.model.stop_training = len(self.model.history.epoch) == 1  # without this one


def test_fit_joins_a_running_job(services, session):
    """A late worker begins with the job's epoch and iteration, and with what the first has untrained."""
    runs, done = threading.Event(), threading.Event()

    def named():
        scaling = keras.layers.Normalization(name="scaling")
        scaling.adapt(np.random.default_rng().normal(size=(9, 1)))
        frozen = keras.layers.Dense(1, name="frozen", trainable=False)
        layers = [keras.Input((1,)), scaling, frozen, keras.layers.Dense(1, name="only")]
        return keras.Sequential(layers, name="same")

    first_model = named()

    def train():
        model, loader = first_model, regression(session)
        optimizer = distribute(keras.optimizers.Adam(0.1), loader, model=model)
        while not done.is_set():
            for x, _ in loader:
                optimizer.apply([tf.reduce_mean(x, 0, keepdims=True), tf.zeros(1)])
                if session.assignment.epoch == 3:
                    runs.set()

    first = threading.Thread(target=train, daemon=True)
    first.start()
    assert runs.wait(240)
    late = Session(SessionConfig(services.manager, tuple(services.addresses), session.config.job, "late"))
    model, loader = named(), regression(late)
    model.compile(keras.optimizers.Adam(0.1), "mse")
    distribute(model, loader)
    assert np.array_equal(model.layers[0].mean, first_model.layers[0].mean)
    assert np.array_equal(model.layers[1].kernel, first_model.layers[1].kernel)
    history = model.fit(loader, epochs=10**6, verbose=0, callbacks=[Enough()])
    assert history.epoch[0] >= 3
    assert late.assignment.epoch == history.epoch[-1] + 1 == history.epoch[0] + 2
    assert int(model.optimizer.iterations) == late.assignment.iteration
    late.close()
    done.set()
    first.join(240)
    assert not first.is_alive()


# -- micro-batches


@pytest.fixture(params=["rounded", "exact"])
def summing(request):
    """This process as the only worker of a job whose sums are rounded, or exact."""
    if request.param == "rounded":
        yield request.getfixturevalue("session")
        return
    with OpenServices(1, silence=120.0, synchronisation=Synchronisation(exact=True)) as services:
        config = SessionConfig(services.manager, tuple(services.addresses), barrier_timeout=240)
        with contextlib.closing(Session(config)) as session:
            yield session
            assert session.exchange.gradient.values.dtype == np.int64


def test_a_slice_is_one_step(summing):
    """The parameters change with the last micro-batch, by the mean over all; statistics begin each anew."""
    session = summing
    layer = keras.layers.BatchNormalization(momentum=0.5, center=False, scale=False, axis=-1)
    model = keras.Sequential([keras.Input((1,)), layer, keras.layers.Dense(1, use_bias=False)])
    weight = model.trainable_variables[0]
    weight.assign([[0.0]])
    x = np.arange(7.0)[:, None]
    loader = DataLoader(x, batch_size=7, micro_batch=3, session=session)
    optimizer = distribute(keras.optimizers.SGD(1.0), loader, model.trainable_variables, model)
    for batch in loader:
        assert len(batch) == 3
        for part in micro_batches(batch):
            assert float(weight[0, 0]) == float(layer.moving_mean[0]) == 0
            model(part, training=True)
            optimizer.apply([tf.reduce_mean(part, 0, keepdims=True)], [weight])
    assert float(weight[0, 0]) == pytest.approx(-3)  # minus the mean of 0 to 6
    assert float(layer.moving_mean[0]) == pytest.approx(1.5)
    # Micro-batches of 0 1 2, 3 4, and 5 6: their variances' mean is (3 * 2/3 + 4 * 1/4) / 7.
    assert float(layer.moving_variance[0]) == pytest.approx(0.5 + 0.5 * 3 / 7)


def test_micro_batches_that_are_gone_through_in_another_way_are_refused(session):
    """A flat loop, a batch that is gone through twice, and a micro-batch without a step or with two."""
    loader = DataLoader(np.ones((8, 1)), batch_size=4, micro_batch=2, session=session)
    optimizer = distribute(keras.optimizers.SGD(1.0), loader, [keras.Variable([1.0])])
    with pytest.raises(InvalidRequestError, match=r"micro_batches of a ndarray: .*micro_batch="):
        next(micro_batches(np.ones(3)))
    batch = next(iter(loader))
    with pytest.raises(TypeError, match=r"evenpace\.keras\.micro_batches\(batch\)"):
        _, _ = batch
    parts = micro_batches(batch)
    next(parts)
    optimizer.apply([tf.ones(1)])
    with pytest.raises(InvalidRequestError, match=r"call optimizer\.apply once for each"):
        optimizer.apply([tf.ones(1)])
    next(parts)
    with pytest.raises(InvalidRequestError, match="micro-batch at position 2 of epoch 0 has no gradient"):
        next(parts)
    with pytest.raises(InvalidRequestError, match="iteration 0 were gone through before"):
        next(micro_batches(batch))


def test_a_slice_of_a_worker_that_has_left_counts_as_if_it_had_not(services, session):
    """A further slice of an iteration starts from the same parameters and statistics as the first."""
    x = np.random.default_rng(1).normal(size=(36, 3))
    told = threading.Event()

    def loader_of(session):
        return DataLoader(x, x[:, :1], batch_size=12, micro_batch=2, session=session)

    def train(session, epochs):
        """Return the weights, the slices that were computed, the epochs, and what was drawn, by iteration."""
        keras.utils.set_random_seed(1)
        layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        loader = loader_of(session)
        optimizer = distribute(keras.optimizers.SGD(0.05), loader, model=model)
        slices, drawn = 0, collections.defaultdict(set)
        for epoch in range(epochs):
            for batch in loader:
                told.set()
                slices += 1
                numbers = drawn[session.assignment.iteration]
                before = random.random(), float(keras.random.uniform(()))
                for inputs, targets in micro_batches(batch):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
                    optimizer.apply(tape.gradient(loss, model.trainable_variables))
                numbers.add((*before, random.random(), float(keras.random.uniform(()))))
            if slices > 3 * (epoch + 1):
                break
        return model.get_weights(), slices, epoch + 1, drawn

    def join_and_leave():
        assert told.wait(240)
        late = Session(SessionConfig(services.manager, tuple(services.addresses), session.config.job, "late"))
        loader_of(late)
        late.join()
        late.close()

    late = threading.Thread(target=join_and_leave, daemon=True)
    late.start()
    weights, slices, epochs, drawn = train(session, 1000)
    late.join(240)
    assert slices > 3 * epochs
    alone = Session(SessionConfig(services.manager, tuple(services.addresses), "alone"))
    expected, slices, _, drawn_alone = train(alone, epochs)
    alone.close()
    assert drawn == drawn_alone
    assert slices == 3 * epochs
    for mine, other in zip(weights, expected, strict=True):
        assert np.allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_layers_have_random_numbers_of_their_own(session):
    """A model's layers draw different numbers, the same for the same seed, whatever seeds they were given."""

    def model(seed):
        layers = [keras.layers.Dropout(0.5, seed=seed), keras.layers.GaussianNoise(1.0, seed=seed)]
        return keras.Sequential([keras.Input((64,)), *layers])

    x = tf.ones((2, 64))
    one, other = model(None), model(3)
    ModelSeeds(one).set(5)
    ModelSeeds(other).set(5)
    first = one(x, training=True)
    assert np.array_equal(first, other(x, training=True))
    assert not np.array_equal(first, one(x, training=True))
    states = [layer.seed_generator.state.numpy() for layer in other.layers]
    assert states[0][0] != states[1][0]


# -- checkpoints


def test_a_checkpoint_is_an_ordinary_one(session, tmp_path):
    """Keras alone goes on from the file with the optimiser's state, as one that never heard of the job."""
    model, loader = make_model(), regression(session)
    distribute(model, loader)
    path = tmp_path / "model.keras"
    model.fit(loader, epochs=3, verbose=0, callbacks=[Checkpoint(path, loader)])
    assert list(tmp_path.iterdir()) == [path]

    loaded = keras.models.load_model(path)
    assert int(loaded.optimizer.iterations) == 9
    served = session.exchange.optimizer_state(session.assignment).slots
    for slot, variables in (
        ("momentum", loaded.optimizer._momentums),
        ("velocity", loaded.optimizer._velocities),
    ):
        assert np.array_equal(np.concatenate([v.numpy().reshape(-1) for v in variables]), served[slot])
        assert np.all(served[slot] != 0)
    before = loaded.get_weights()
    loaded.train_on_batch(tf.ones((3, 1)), tf.zeros((3, 1)))
    assert not np.array_equal(before[0], loaded.get_weights()[0])


def test_a_loop_goes_on_from_a_checkpoint(services, session, tmp_path):
    """Saved in the middle of an epoch and loaded, the loop ends with the variables of one that was not."""

    def train(model, loader, stop=None):
        optimizer = distribute(model.optimizer, loader, model.trainable_variables)
        for _ in range(2):
            for x, y in loader:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x) - y) ** 2)
                optimizer.apply(tape.gradient(loss, model.trainable_variables))
                if loader.session.assignment.iteration == stop:
                    return save(model, loader, tmp_path / "model.keras")
        return model.get_weights()

    def start(name):
        other = Session(SessionConfig(services.manager, tuple(services.addresses), job=name))
        return other, regression(other)

    def make():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9))
        return model

    whole = train(make(), regression(session))
    first, loader = start("first")
    train(make(), loader, stop=4)
    first.close()
    second, loader = start("second")
    resumed = train(load(tmp_path / "model.keras", loader), loader)
    second.close()
    for mine, other in zip(resumed, whole, strict=True):
        assert np.array_equal(mine, other)


def test_checkpoints_of_something_else_are_refused(session, tmp_path):
    """Other files' names, models without an optimiser, and files without a job."""
    model, loader = make_model(), regression(session)
    distribute(model, loader)
    with pytest.raises(InvalidRequestError, match=r"must end in \.keras"):
        save(model, loader, tmp_path / "model.h5")
    bare = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(InvalidRequestError, match="without its optimiser"):
        save(bare, loader, tmp_path / "model.keras")
    bare.save(tmp_path / "bare.keras")
    with pytest.raises(InvalidRequestError, match="no job"):
        load(tmp_path / "bare.keras", regression(Session(NOWHERE)))
