"""The training of chaos runs, and the same by one process that takes the whole batches in order.

It is in float64, smooth, without dropout or batch statistics, so that with any split of the batches the
result is the same to rounding error. It is in NumPy alone, so that a worker starts again quickly.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idl.plan import JobSpec, permutation

Array = NDArray[np.float64]

SPEC = JobSpec(dataset_size=2000, total_batch_size=96, seed=11)
SCHEDULE = {epoch: (96, 72, 120)[epoch % 3] for epoch in range(1000)}
SCHEDULED = JobSpec.of(560, SCHEDULE, SPEC.seed)  # of a run with a schedule, in short epochs
LEAST, MOST = 48, 600  # samples of a batch, of a run with a sizer that chooses
# The noise scale grows from 1,500 samples to 10,000 in 400 iterations, and with it such a batch.
SIMILARITY = 0.02
ORDERED = 192  # most samples of a batch that an operator asks for, from `LEAST` on
MICRO_BATCH = 8  # samples, in a run with exact sums
PRINT_EVERY = 10  # versions: what went wrong is forgotten by the parameters in time
OPTIONS = {
    "lr": 0.02,
    "momentum": 0.9,
    "weight_decay": 0.01,
}  # a step counts for long; rounding does not grow

_FEATURES, _HIDDEN, _CLASSES = 64, 512, 10
_SHAPES = ((_FEATURES, _HIDDEN), (_HIDDEN,), (_HIDDEN, _CLASSES), (_CLASSES,))


def make_data() -> tuple[Array, NDArray[np.int64]]:
    """Make a fixed task: inputs (samples, features), and labels (samples,), some of which are wrong."""
    draw = np.random.default_rng(5)
    inputs = draw.normal(size=(SPEC.dataset_size, _FEATURES))
    scores = inputs @ draw.normal(size=(_FEATURES, _CLASSES)) + 4 * draw.normal(size=(len(inputs), _CLASSES))
    return inputs, scores.argmax(1)


def first_parameters() -> Array:
    """Return the first parameters of a network with one hidden layer, (elements,); the same every time."""
    draw = np.random.default_rng(3)
    return np.concatenate([draw.normal(size=shape).ravel() / 8 for shape in _SHAPES])


def mean_gradient(parameters: Array, inputs: Array, labels: NDArray[np.int64]) -> Array:
    """Return the gradient of the mean cross-entropy over the samples, (elements,)."""
    first, first_bias, second, second_bias = views(parameters)
    hidden = np.tanh(inputs @ first + first_bias)
    scores = hidden @ second + second_bias
    error = np.exp(scores - scores.max(1, keepdims=True))
    error /= error.sum(1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    back = error @ second.T * (1 - hidden**2)
    parts = (inputs.T @ back, back.sum(0), hidden.T @ error, error.sum(0))
    return np.concatenate([part.ravel() for part in parts])


def fingerprint(parameters: Array) -> Array:
    """Return four numbers, (4,), that change with every parameter, in proportion."""
    return np.asarray(_directions(len(parameters)) @ parameters)


def train_alone(
    iterations: int, spec: JobSpec = SPEC, batch_of: Callable[[int], tuple[int, int, int]] = SPEC.batch
) -> tuple[dict[int, Array], Array]:
    """Train on whole batches, in order, for some iterations in this process.

    An iteration's batch is its epoch, first position there, and samples. Returned are the fingerprint of
    every `PRINT_EVERY`th version, and the last version's parameters, (elements,).
    """
    inputs, labels = make_data()
    parameters = first_parameters()
    velocity: Any = np.zeros_like(parameters)
    prints = {0: fingerprint(parameters)}
    order = permutation(spec, 0)
    for iteration in range(iterations):
        epoch, start, total = batch_of(iteration)
        if start == 0:
            order = permutation(spec, epoch)
        batch = order[start : start + total]
        gradient = mean_gradient(parameters, inputs[batch], labels[batch])
        # The update of torch.optim.SGD.
        velocity = OPTIONS["momentum"] * velocity + gradient + OPTIONS["weight_decay"] * parameters
        parameters = parameters - OPTIONS["lr"] * velocity
        if (iteration + 1) % PRINT_EVERY == 0:
            prints[iteration + 1] = fingerprint(parameters)
    return prints, parameters


def views(parameters: Array) -> Iterator[Array]:
    """Yield the layers' weights and biases, as views of flat parameters, (elements,)."""
    position = 0
    for shape in _SHAPES:
        size = int(np.prod(shape))
        yield parameters[position : position + size].reshape(shape)
        position += size


@lru_cache(maxsize=1)
def _directions(elements: int) -> Array:
    """Return four directions of length 1, (4, elements)."""
    directions = np.random.default_rng(7).normal(size=(4, elements))
    return np.asarray(directions / np.linalg.norm(directions, axis=1, keepdims=True))
