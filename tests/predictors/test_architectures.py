"""The networks' formulas agree with Keras's own layers."""

import os

import numpy as np
import pytest

from predictors.architectures import LSTM, NARX, SIMPLE_RNN, UNITS

os.environ.setdefault("KERAS_BACKEND", "torch")


X = np.random.default_rng(1).normal(size=(5, 2, 8))


def dense(keras, weights):
    """A dense layer of tanh units."""
    return keras.layers.Dense(UNITS, activation="tanh"), [weights["hidden"], weights["hidden_bias"]], X


def recurrent(keras, weights):
    """A recurrent layer over the speed before, then the latest."""
    kernels = [weights["input"][None], weights["recurrent"], weights["bias"]]
    return keras.layers.SimpleRNN(UNITS), kernels, X[..., :2]


def lstm(keras, weights):
    """A long short-term memory over the same, whose gates are in another order."""

    def their_order(array):
        admit, keep, show, cell = np.split(array, 4, axis=-1)
        return np.concatenate((admit, keep, cell, show), axis=-1)

    kernels = [weights["input"][None], weights["recurrent"], weights["bias"]]
    return keras.layers.LSTM(UNITS), [their_order(kernel) for kernel in kernels], X[..., :2]


@pytest.mark.parametrize(("ours", "layer"), [(NARX, dense), (SIMPLE_RNN, recurrent), (LSTM, lstm)])
def test_a_network_is_a_layer_of_keras_and_a_linear_output(ours, layer):
    """Each worker's, with its own weights."""
    import keras

    rng, worker = np.random.default_rng(0), 1
    weights = {name: rng.normal(0, 0.5, (2, *shape)) for name, shape in ours.shapes.items()}
    own = {name: array[worker] for name, array in weights.items()}
    theirs, kernels, given = layer(keras, own)
    inputs = given[:, worker] if layer is dense else given[:, worker, ::-1, None]
    theirs.build(inputs.shape)
    theirs.set_weights(kernels)
    hidden = np.asarray(theirs(inputs.astype("float32")).detach())

    expected = hidden @ own["output"] + own["output_bias"]
    assert ours.forward(np, weights, given)[:, worker] == pytest.approx(expected, abs=1e-5)
