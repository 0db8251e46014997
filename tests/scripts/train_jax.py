"""A worker's script: trains a small float64 network on digits with JAX, and writes what it ended with.

It trains another one in micro-batches in a second job, and with --alone once more as the only worker of
other services.
"""

import argparse
import atexit
import dataclasses
import json
import random
import sys
from pathlib import Path

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import evenpace
from rpc.address import Address
from worker.session import Session

SAMPLES, BATCH, SEED = 500, 64, 7
IN_MICRO_BATCHES = {"samples": 98, "batch": 24, "micro_batch": 5, "epochs": 3}  # an epoch's last batch has 2


def make_data():
    """(samples, 64) and (samples,)."""
    digits = load_digits()
    return digits.data[:SAMPLES] / 16, digits.target[:SAMPLES]


def make_params():
    """The same first parameters every time."""
    generator = np.random.default_rng(SEED)
    return {
        "hidden": {"kernel": generator.normal(size=(64, 32)) / 8, "bias": np.zeros(32)},
        "output": {"kernel": generator.normal(size=(32, 10)) / 6, "bias": np.zeros(10)},
    }


def loss_fn(params, batch):
    """The losses of a batch's samples, (n,)."""
    images, labels = batch
    hidden = jnp.tanh(images @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    logits = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def make_optimizer(library):
    """Of optax, or of evenpace under the same names."""
    schedule = optax.exponential_decay(0.05, transition_steps=8, decay_rate=0.9)
    return library.sgd(schedule, momentum=0.9, nesterov=True)


def made_up_time(session):
    """For a worker whose speed jumps about, so that batch sizes do."""
    now = session.assignment
    speed = np.random.default_rng([*session.config.worker.encode(), now.iteration]).lognormal()
    return lambda: now.count / speed


class Augmented:
    """Digits as a map-style data set, moved and made noisy by numbers of Python and NumPy."""

    def __init__(self):
        self.images, self.labels = make_data()

    def __len__(self):
        return IN_MICRO_BATCHES["samples"]

    def __getitem__(self, index):
        image = np.roll(self.images[index], random.randint(-1, 1))
        return image + 0.1 * np.random.normal(size=image.shape), self.labels[index]


def random_loss_fn(params, batch, statistics, rng):
    """The losses, (n,), of a network with batch normalisation and dropout, and its new statistics."""
    images, labels = batch
    hidden = images @ params["hidden"]["kernel"]
    now = {"mean": hidden.mean(axis=0), "var": hidden.var(axis=0)}
    hidden = jnp.tanh((hidden - now["mean"]) / jnp.sqrt(now["var"] + 1e-5) + params["hidden"]["bias"])
    hidden = jnp.where(jax.random.bernoulli(rng, 0.7, hidden.shape), hidden / 0.7, 0)
    logits = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses, jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, statistics, now)


def train_in_micro_batches(path, **others):
    """In a job of its own, with other services where they are given; writes parameters, losses and sizes."""
    session = Session(dataclasses.replace(evenpace.session().config, job="micro", **others))
    atexit.register(session.close)
    session.meter.measure_by(lambda: made_up_time(session))
    loader = evenpace.jax.DataLoader(
        Augmented(),
        IN_MICRO_BATCHES["batch"],
        micro_batch=IN_MICRO_BATCHES["micro_batch"],
        shuffle=True,
        seed=SEED,
        session=session,
    )
    shapes = []

    def traced_loss(params, batch, statistics, rng):
        shapes.append(len(batch[1]))
        return random_loss_fn(params, batch, statistics, rng)

    value_and_grad = evenpace.jax.value_and_grad(traced_loss, has_aux=True, rng=jax.random.key(SEED))
    statistics = {"mean": np.zeros(32), "var": np.ones(32)}
    rule = evenpace.jax.sgd(0.05, momentum=0.9)
    optimizer = evenpace.jax.distribute(rule, make_params(), loader, statistics=statistics)
    losses, sizes, drawn = [], [], []
    for batch in (batch for _ in range(IN_MICRO_BATCHES["epochs"]) for batch in loader):
        sizes.append(session.assignment.count)
        before = [random.random(), np.random.random()]
        scale = sum(before) if sizes[-1] else np.inf  # its gradient is no number
        params = jax.tree.map(lambda leaf, factor=scale: factor * leaf, optimizer.params)
        (loss, statistics), gradient = value_and_grad(params, batch, optimizer.statistics)
        drawn += [*before, random.random(), np.random.random()]
        optimizer.step(gradient, statistics)
        losses.append(loss if sizes[-1] else 0.0)
    result = jax.flatten_util.ravel_pytree((optimizer.params, optimizer.statistics))[0]
    np.savez(path, result=result, losses=losses, sizes=sizes, shapes=shapes, drawn=drawn)
    session.close()


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--alone", help="manager and shard of a cluster for one worker, with a comma between")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    traces = []

    def traced_loss(params, batch):
        traces.append(len(batch[1]))
        return loss_fn(params, batch)

    loader = evenpace.jax.DataLoader(make_data(), batch_size=BATCH, shuffle=True, seed=SEED)
    loader.session.meter.measure_by(lambda: made_up_time(loader.session))
    value_and_grad = evenpace.jax.value_and_grad(traced_loss, micro_batch_size=4)
    optimizer = evenpace.jax.distribute(make_optimizer(evenpace.jax), make_params(), loader)
    sizes = []
    for batch in (batch for _ in range(options.epochs) for batch in loader):
        _, gradient = value_and_grad(optimizer.params, batch)
        optimizer.step(gradient)
        sizes.append(len(batch[1]))
    np.save(options.out, jax.flatten_util.ravel_pytree(optimizer.params)[0])
    notes = {"sizes": sizes, "traces": traces, "torch": "torch" in sys.modules}
    options.out.with_suffix(".json").write_text(json.dumps(notes))
    train_in_micro_batches(options.out.with_suffix(".micro.npz"))
    if options.alone:
        manager, shard = map(Address.parse, options.alone.split(","))
        train_in_micro_batches(options.out.with_suffix(".alone.npz"), manager=manager, shards=(shard,))


if __name__ == "__main__":
    main()
