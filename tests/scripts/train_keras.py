"""A worker's script: trains small float64 Keras models in several jobs, one after the other.

It writes each job's final variables, batch sizes and traces; with --alone, also the variables of one process
that takes the whole batches with Keras's own optimiser, and those of a job in micro-batches without other
workers.
"""

import argparse
import atexit
import dataclasses
import os
import random
import sys
import warnings
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import evenpace
from idl.plan import JobSpec, permutation
from rpc.address import Address
from worker.session import Session

SAMPLES, BATCH, SEED, EPOCHS = 601, 120, 7, 6  # an epoch's sixth batch has 1 sample
SPEC = JobSpec(SAMPLES, BATCH, SEED)
STEPS = SPEC.iterations_per_epoch
IN_MICRO_BATCHES = {"samples": 98, "batch": 24, "micro_batch": 5, "epochs": 3}  # an epoch's last batch has 2


def make_data():
    """Digits: (samples, 64) from 0 to 1, and (samples,)."""
    images, labels = load_digits(return_X_y=True)
    return images[:SAMPLES] / 16, labels[:SAMPLES]


def begin_anew():
    """As in a process of its own, so that layers have the same names and variables in all jobs."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(SEED)


def make_model():
    """The same first variables every time."""
    begin_anew()
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(16, "tanh", kernel_regularizer=keras.regularizers.L2(1e-3)),
        keras.layers.Dense(10),
    ]
    return keras.Sequential(layers, name="digits")


def make_loss():
    """Cross-entropy of logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_optimizer():
    """Keras's, whose learning rate is changed by epochs."""
    return keras.optimizers.AdamW(0.01, weight_decay=0.1)


def make_loader(session):
    """Of the training data."""
    return evenpace.keras.DataLoader(*make_data(), batch_size=BATCH, shuffle=True, seed=SEED, session=session)


def rate(epoch, _=None):
    """The learning rate of an epoch."""
    return 0.01 * 0.8**epoch


class Tally:
    """Counts traces, and notes the batch sizes."""

    def __init__(self):
        self.traces, self.sizes = 0, []


def train_step(model, optimizer, loss):
    """One step of a loop of one's own."""

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True)) + sum(model.losses)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return step


def train_alone():
    """One process on the whole batches."""
    x, y = make_data()
    model, optimizer = make_model(), make_optimizer()
    step = tf.function(train_step(model, optimizer, make_loss()), reduce_retracing=True)
    for epoch in range(EPOCHS):
        optimizer.learning_rate = rate(epoch)
        for batch in np.array_split(permutation(SPEC, epoch), range(BATCH, SAMPLES, BATCH)):
            step(tf.constant(x[batch]), tf.constant(y[batch]))
    return model


class Counted(keras.callbacks.Callback):
    """Counts fit's steps."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        """See `keras.callbacks.Callback`."""
        self.steps += 1


def train_fit(session, tally):
    """By `model.fit`, with callbacks and validation."""
    layers = make_model()

    class Noted(keras.Model):
        """Counts traces, and notes the batch sizes."""

        def train_step(self, data):
            tally.traces += 1
            tf.py_function(lambda: tally.sizes.append(session.assignment.count), [], [])
            return super().train_step(data)

    model = Noted(layers.inputs, layers.outputs)
    model.compile(make_optimizer(), make_loss(), metrics=["accuracy"], jit_compile=True)
    loader = make_loader(session)
    evenpace.keras.distribute(model, loader)
    counted = Counted()
    callbacks = [keras.callbacks.LearningRateScheduler(rate), counted]
    x, y = make_data()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        history = model.fit(
            loader, epochs=EPOCHS, verbose=0, callbacks=callbacks, validation_data=(x[:50], y[:50])
        )
    assert counted.steps == EPOCHS * STEPS
    assert history.history["accuracy"][-1] > history.history["accuracy"][0]
    return model


class Augmented:
    """Digits as a map-style data set: moved, made noisy and darker by numbers of Python, NumPy and Keras."""

    def __init__(self):
        images, self.labels = make_data()
        self.images = images.reshape(-1, 8, 8, 1)

    def __len__(self):
        return IN_MICRO_BATCHES["samples"]

    def __getitem__(self, index):
        image = np.roll(self.images[index], random.randint(-1, 1), axis=0)
        image = image + 0.1 * np.random.normal(size=image.shape)
        return float(keras.random.uniform((), 0.5)) * image, self.labels[index]


def make_random():
    """With batch normalisation, and layers that draw random numbers."""
    begin_anew()
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.RandomFlip("horizontal"),
        *(keras.layers.Conv2D(4, 3, use_bias=False), keras.layers.BatchNormalization()),
        *(keras.layers.ReLU(), keras.layers.SpatialDropout2D(0.2), keras.layers.Flatten()),
        *(keras.layers.Dense(16), keras.layers.BatchNormalization(momentum=0.8)),
        *(keras.layers.GaussianNoise(0.1), keras.layers.Dropout(0.3), keras.layers.Dense(10)),
    ]
    return keras.Sequential(layers, name="random")


class Iterations(keras.callbacks.Callback):
    """Notes the samples of each of fit's steps, and the loss after each."""

    def __init__(self, session):
        super().__init__()
        self.session, self.sizes, self.losses = session, [], []

    def on_train_batch_begin(self, batch, logs=None):
        """See `keras.callbacks.Callback`."""
        self.sizes.append(self.session.assignment.count)

    def on_train_batch_end(self, batch, logs=None):
        """See `keras.callbacks.Callback`."""
        self.losses.append(logs["loss"])


def train_in_micro_batches(session):
    """By `fit`; the results to be written."""
    model = make_random()
    decay = keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.7)
    model.compile(keras.optimizers.SGD(decay, momentum=0.9), make_loss())
    loader = evenpace.keras.DataLoader(
        Augmented(),
        batch_size=IN_MICRO_BATCHES["batch"],
        micro_batch=IN_MICRO_BATCHES["micro_batch"],
        shuffle=True,
        seed=SEED,
        session=session,
    )
    evenpace.keras.distribute(model, loader)
    noted = Iterations(session)
    history = model.fit(loader, epochs=IN_MICRO_BATCHES["epochs"], verbose=0, callbacks=[noted])
    return {
        "variables": np.concatenate([flat(model), flat(model, trained=False, of="moving_")]),
        "sizes": noted.sizes,
        "losses": noted.losses,
        "epochs": history.history["loss"],
        "iterations": int(model.optimizer.iterations),
    }


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--alone", help="manager and shard of a cluster for one worker, with a comma between")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.config.set_floatx("float64")
    slow = 1 + int(options.out.name)  # the worker's number: each is as slow as its turn has it
    session, tally = job_session("fit"), Tally()
    session.meter.measure_by(lambda: invented_time(session.assignment, slow))
    model = train_fit(session, tally)
    session.close()
    results = {"variables": flat(model), "sizes": tally.sizes, "traces": tally.traces}
    if options.alone:
        results["alone"] = flat(train_alone())
    np.savez(options.out.with_name(f"{options.out.name}-fit"), **results)
    session = job_session("micro")
    session.meter.measure_by(lambda: invented_time(session.assignment, slow))
    results = train_in_micro_batches(session)
    session.close()
    if options.alone:
        manager, shard = map(Address.parse, options.alone.split(","))
        session = job_session("micro", manager=manager, shards=(shard,))
        results |= {f"alone_{name}": value for name, value in train_in_micro_batches(session).items()}
        session.close()
    np.savez(options.out.with_name(f"{options.out.name}-micro"), **results)
    assert "torch" not in sys.modules


def invented_time(assignment, slow):
    """Makes batch sizes change all the time."""
    seconds = 1e-3 * assignment.count * (1 + (7 * slow * assignment.iteration) % 37 / 8)
    return lambda: seconds


def job_session(job, **others):
    """This worker's session for a job of its own, with other services where they are given."""
    session = Session(dataclasses.replace(evenpace.session().config, job=job, **others))
    atexit.register(session.close)
    return session


def flat(model, trained=True, of=""):
    """All trained variables, (elements,); or the others, whose names begin with `of`."""
    variables = model.trainable_variables if trained else model.non_trainable_variables
    return np.concatenate([np.empty(0), *(v.numpy().reshape(-1) for v in variables if v.name.startswith(of))])


if __name__ == "__main__":
    main()
