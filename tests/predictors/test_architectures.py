"""The networks' formulas agree with Keras's own layers."""

import os

import numpy as np
import pytest

from predictors.architectures import LSTM, NARX, SIMPLE_RNN, UNITS

os.environ.setdefault("KERAS_BACKEND", "torch")


def random_weights(architecture, workers=2):
    """Draw weights for some workers."""
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 0.5, (workers, *shape)) for name, shape in architecture.shapes.items()}


def theirs(layer, kernels, x):
    """Return the output of a Keras layer with these weights."""
    layer.build(x.shape)
    layer.set_weights(kernels)
    return np.asarray(layer(x.astype("float32")).detach())


X = np.random.default_rng(1).normal(size=(5, 2, 8))


def readout(weights, worker, hidden):
    """Apply the output layer."""
    return hidden @ weights["output"][worker] + weights["output_bias"][worker]


@pytest.mark.parametrize("worker", [0, 1])
def test_narx_is_a_dense_layer(worker):
    """Each worker's NARX is a dense layer of tanh units and a linear output, with its own weights."""
    import keras

    weights = random_weights(NARX)
    dense = keras.layers.Dense(UNITS, activation="tanh")
    hidden = theirs(dense, [weights["hidden"][worker], weights["hidden_bias"][worker]], X[:, worker])

    assert NARX.forward(np, weights, X)[:, worker] == pytest.approx(
        readout(weights, worker, hidden), abs=1e-5
    )


@pytest.mark.parametrize("worker", [0, 1])
def test_simple_rnn_is_keras_simple_rnn(worker):
    """Each worker's recurrent network is Keras's SimpleRNN over the speed before, then the latest."""
    import keras

    weights = random_weights(SIMPLE_RNN)
    kernels = [weights["input"][worker][None], weights["recurrent"][worker], weights["bias"][worker]]
    hidden = theirs(keras.layers.SimpleRNN(UNITS), kernels, X[:, worker, 1::-1, None])

    ours = SIMPLE_RNN.forward(np, weights, X[..., :2])[:, worker]
    assert ours == pytest.approx(readout(weights, worker, hidden), abs=1e-5)


@pytest.mark.parametrize("worker", [0, 1])
def test_lstm_is_keras_lstm(worker):
    """Each worker's long short-term memory is Keras's LSTM, but for the order of the gates."""
    import keras

    weights = random_weights(LSTM)

    def their_order(array):
        admit, keep, show, cell = np.split(array, 4, axis=-1)
        return np.concatenate((admit, keep, cell, show), axis=-1)

    kernels = [weights["input"][worker][None], weights["recurrent"][worker], weights["bias"][worker]]
    layer = keras.layers.LSTM(UNITS)
    hidden = theirs(layer, [their_order(kernel) for kernel in kernels], X[:, worker, 1::-1, None])

    ours = LSTM.forward(np, weights, X[..., :2])[:, worker]
    assert ours == pytest.approx(readout(weights, worker, hidden), abs=1e-5)
