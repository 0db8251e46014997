"""Training of the networks of all workers together, as one Keras model. Importing this imports Keras.

Only a fit imports it, in a process of its own.
"""

import os
from typing import Any

# Keras chooses its backend when it is imported; PyTorch is the one that is always there, whatever the
# environment says for workers that train with another.
os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

from predictors.architectures import CENTER, SPREAD, Architecture, standardised
from predictors.base import Array, Weights
from predictors.time_series import CPU, INPUTS, MEMORY, SPEED

_EPOCHS, _EPOCHS_FROM_START = 40, 10
_PATIENCE = 4  # epochs without progress
_PROGRESS = 0.995  # of the workers' least losses so far, summed, counts as progress
_BATCH = 64
_LEARNING_RATE = 0.01
_VALIDATION = 0.2  # of the samples
_SPEED_FLOOR = 0.01  # of the mean speed; the least standard deviation, so that noise is not scaled up
_USAGE_FLOOR = 0.02


class _Networks(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """An architecture with weights for each worker: (samples, workers, inputs) to (samples, workers, 1)."""

    def __init__(self, architecture: Architecture, start: Weights) -> None:
        super().__init__()
        self._architecture = architecture
        self._named = {
            name: self.add_weight(shape=array.shape, initializer="zeros", name=name)
            for name, array in start.items()
        }
        for name, array in start.items():
            self._named[name].assign(array)

    def call(self, x: Any) -> Any:
        """Apply `Architecture.forward` with the layer's weights."""
        weights = {name: keras.ops.convert_to_tensor(array) for name, array in self._named.items()}
        return keras.ops.expand_dims(self._architecture.forward(keras.ops, weights, x), -1)

    def export(self) -> dict[str, Array]:
        """Return the weights as NumPy arrays."""
        return {name: keras.ops.convert_to_numpy(w).astype(float) for name, w in self._named.items()}


def train(
    architecture: Architecture, given: Array, followed: Array, usable: Array, start: Weights | None, seed: int
) -> dict[str, Array]:
    """Fit all workers' networks; each keeps the weights of its best epoch on its validation part.

    The loss is Huber's, since speeds have spikes that no input announces.

    Args:
        architecture: The kind of the networks.
        given: Inputs, (samples, workers, 8).
        followed: The speeds that followed, (samples, workers).
        usable: The samples' weights, (samples, workers).
        start: Weights to start from, center and spread included.
        seed: Seed of random weights, of the samples' order, and of the choice of those for validation.

    Returns:
        The weights, with center and spread; they may be useless for a worker with few samples.
    """
    rng = np.random.default_rng(seed)
    center, spread = _scale(given, usable)
    channels = architecture.channels
    x = standardised(given[..., : len(channels)], center, spread, channels)
    y = (followed - center[:, SPEED]) / spread[:, SPEED]
    order = rng.permutation(len(x))
    held_out, kept = np.split(order, [int(_VALIDATION * len(x))])
    first = (
        _random(architecture, x.shape[1], rng)
        if start is None
        else {name: start[name] for name in architecture.shapes}
    )
    epochs = _EPOCHS if start is None else _EPOCHS_FROM_START

    # With several threads, PyTorch would fight for cores over steps of a fraction of a millisecond.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        layer = _Networks(architecture, first)
        model = keras.Sequential([keras.Input(x.shape[1:]), layer])
        # Adam does not mind the scale of the loss: summed, a worker's steps do not depend on the others.
        model.compile(keras.optimizers.Adam(_LEARNING_RATE), keras.losses.Huber(reduction="sum"))
        best, least = first, _losses(architecture, first, x[held_out], y[held_out], usable[held_out])
        progress = 0
        for epoch in range(epochs):
            rng.shuffle(kept)
            for batch in np.array_split(kept, -(-len(kept) // _BATCH)):
                model.train_on_batch(x[batch], y[batch, :, None], sample_weight=usable[batch])
            now = layer.export()
            losses = _losses(architecture, now, x[held_out], y[held_out], usable[held_out])
            better = losses <= least  # a worker without validation samples takes the last epoch's
            if np.minimum(losses, least).sum() < _PROGRESS * least.sum():
                progress = epoch
            for name, array in now.items():
                array[~better] = best[name][~better]
            best, least = now, np.where(better, losses, least)
            if epoch - progress >= _PATIENCE:
                break
    finally:
        torch.set_num_threads(threads)
    return {**best, CENTER: center, SPREAD: spread}


def _scale(given: Array, usable: Array) -> tuple[Array, Array]:
    """Return means and standard deviations of speed, CPU and memory usage, (workers, 3) each."""
    latest = given[..., [INPUTS.index(channel) for channel in (SPEED, CPU, MEMORY)]]
    weights = usable[..., None] / np.maximum(usable.sum(axis=0), 1.0)[:, None]
    center = (weights * latest).sum(axis=0)
    variance = (weights * (latest - center) ** 2).sum(axis=0)
    floor = np.stack((_SPEED_FLOOR * center[:, SPEED], *[np.full(len(center), _USAGE_FLOOR)] * 2), axis=1)
    return center, np.maximum(np.sqrt(variance), np.maximum(floor, 1e-12))


def _random(architecture: Architecture, workers: int, rng: np.random.Generator) -> dict[str, Array]:
    """Draw Glorot's uniform weights, with biases of 0; the same for all workers, (workers, ...)."""
    weights = {}
    for name, shape in architecture.shapes.items():
        fan = sum(shape[-2:]) + (len(shape) < 2)
        limit = 0.0 if name.endswith("bias") else np.sqrt(6 / fan)
        weights[name] = np.broadcast_to(rng.uniform(-limit, limit, shape), (workers, *shape)).copy()
    return weights


def _losses(architecture: Architecture, weights: Weights, x: Array, y: Array, usable: Array) -> Array:
    """Return the Huber loss on each worker's validation part, (workers,)."""
    errors = np.abs(architecture.forward(np, weights, x) - y)
    losses = np.where(errors < 1, 0.5 * errors**2, errors - 0.5) * usable
    means: Array = losses.sum(axis=0) / np.maximum(usable.sum(axis=0), 1.0)
    return means
