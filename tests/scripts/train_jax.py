"""A worker's script: trains a small float64 network on digits with JAX, and writes what it ended with."""

import argparse
import json
import sys
from pathlib import Path

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from sklearn.datasets import load_digits

import evenpace

SAMPLES, BATCH, SEED = 500, 64, 7


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


def make_optimizer(name, library):
    """Of optax, or of evenpace under the same names."""
    schedule = optax.exponential_decay(0.05, transition_steps=8, decay_rate=0.9)
    if name == "sgd":
        return library.sgd(schedule, momentum=0.9, nesterov=True)
    return library.adamw(schedule, weight_decay=0.01)


def made_up_time(session):
    """For a worker whose speed jumps about, so that batch sizes do."""
    now = session.assignment
    speed = np.random.default_rng([*session.config.worker.encode(), now.iteration]).lognormal()
    return lambda: now.count / speed


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stop-at", type=int, help="the iteration before which to save, and stop")
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    traces = []

    def traced_loss(params, batch):
        traces.append(len(batch[1]))
        return loss_fn(params, batch)

    loader = evenpace.jax.DataLoader(make_data(), batch_size=BATCH, shuffle=True, seed=SEED)
    loader.session.processing_time = lambda: made_up_time(loader.session)
    value_and_grad = evenpace.jax.value_and_grad(traced_loss, micro_batch_size=4)
    saved = {"params": make_params(), "optimizer": None}
    if options.resume:
        saved = unflatten_dict(dict(np.load(options.resume)), sep="/")
        loader.load_state_dict(saved["loader"])
    rule = make_optimizer(options.optimizer, evenpace.jax)
    optimizer = evenpace.jax.distribute(rule, saved["params"], loader, state=saved["optimizer"])
    sizes = []
    for batch in (batch for _ in range(options.epochs) for batch in loader):
        _, gradient = value_and_grad(optimizer.params, batch)
        optimizer.step(gradient)
        sizes.append(len(batch[1]))
        if len(sizes) == options.stop_at:
            states = {"optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            np.savez(
                options.out.with_suffix(".npz"),
                **flatten_dict({"params": optimizer.params} | states, sep="/"),
            )
            break
    np.save(options.out, jax.flatten_util.ravel_pytree(optimizer.params)[0])
    notes = {"sizes": sizes, "traces": traces, "torch": "torch" in sys.modules}
    options.out.with_suffix(".json").write_text(json.dumps(notes))


if __name__ == "__main__":
    main()
