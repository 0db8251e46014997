"""Keras: the seeds that layers, and functions of `keras.random`, draw random numbers from."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator  # which has no public name
from numpy.typing import NDArray

from worker.data import randomness


def seed_generators(seed: int) -> None:
    """Seed the generators of Python, NumPy and Keras that a script draws from unless it makes its own.

    Not TensorFlow's: `tf.random.set_seed` lets each `tf.function` be prepared again, which takes
    milliseconds, and a function that was traced before keeps its seeds all the same.

    Args:
        seed: From 0 to 2^63 - 1.
    """
    global_seed_generator().state.assign(_states(seed, 1)[0])  # first, as it may draw from Python's
    randomness.seed_generators(seed)


class ModelSeeds:
    """The seeds of a model's layers: dropout, noise, random augmentation.

    Args:
        model: The model, built.
    """

    def __init__(self, model: keras.Model) -> None:
        self._states = states = [v for v in model.variables if v.name == "seed_generator_state"]

        # A tenth of the time that it takes variable by variable outside of a function.
        @tf.function(input_signature=[tf.TensorSpec([len(states), 2], tf.int64)], autograph=False)  # type: ignore[untyped-decorator]
        def assign(values: Any) -> None:
            for state, value in zip(states, tf.unstack(values), strict=True):
                state.assign(value)

        self._assign = assign

    def set(self, seed: int) -> None:
        """Give each of the model's generators a seed of its own, a function of `seed` and its place alone."""
        if self._states:
            self._assign(_states(seed, len(self._states)))


def _states(seed: int, number: int) -> NDArray[np.int64]:
    """Return the states, (number, 2), of Keras's generators: 31 bits, and a count that they step up."""
    numbers = np.random.SeedSequence(seed).generate_state(2 * number)  # the same with any version of NumPy
    return (numbers.reshape(number, 2) >> 1).astype(np.int64)
