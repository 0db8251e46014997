"""A worker's script: trains a small float64 network on digits with JAX in micro-batches, and writes the end.

With --alone it trains once more, as the only worker of other services.
"""

import argparse
import atexit
import dataclasses
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

SAMPLES, BATCH, MICRO_BATCH, EPOCHS, SEED = 98, 24, 5, 3, 7  # an epoch's last batch has 2 samples


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
        return SAMPLES

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


def train(session, path):
    """Train, and write parameters, losses and sizes."""
    atexit.register(session.close)
    session.meter.measure_by(lambda: made_up_time(session))
    loader = evenpace.jax.DataLoader(
        Augmented(),
        BATCH,
        micro_batch=MICRO_BATCH,
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
    for batch in (batch for _ in range(EPOCHS) for batch in loader):
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
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--alone", help="manager and shard of a cluster for one worker, with a comma between")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    train(evenpace.session(), options.out)
    if options.alone:
        manager, shard = map(Address.parse, options.alone.split(","))
        config = dataclasses.replace(evenpace.session().config, manager=manager, shards=(shard,))
        train(Session(config), options.out.with_suffix(".alone.npz"))
    assert "torch" not in sys.modules


if __name__ == "__main__":
    main()
