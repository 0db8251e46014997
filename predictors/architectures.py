"""Small neural networks, one for each worker, as functions from arrays to arrays.

Each `forward` is written once, for NumPy (to predict) and for `keras.ops` (to learn): `ops` is either. This
module does not know where the weights come from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictors.base import Array, Weights
from predictors.time_series import INPUTS, SPEED, inputs

UNITS = 10
"""Units of the one hidden layer."""

CENTER, SPREAD = "center", "spread"
"""Names of the means and standard deviations of speed, CPU usage and memory usage, which go with a model."""

_LIMIT = 5.0  # standard deviations; inputs further from the mean are clipped: no fit has seen such

Forward = Callable[[Any, Mapping[str, Any], Any], Any]


@dataclass(frozen=True)
class Architecture:
    """A kind of network: the shapes of its weights, its inputs, and its formula.

    Attributes:
        channels: The channel of each input, in the order of `predictors.time_series.inputs`; an architecture
            with fewer inputs takes the first of these.
        forward: Takes `ops`, weights (workers, ...) and standardised inputs (samples, workers, inputs), and
            gives (samples, workers) standardised speeds.
    """

    # The shape of each array of weights, for one worker. Names that end in `bias` start at 0.
    shapes: Mapping[str, tuple[int, ...]]
    channels: tuple[int, ...]
    forward: Forward


def predict(architecture: Architecture, model: Weights, block: Array) -> Array:
    """Return the speed that follows a block of iterations, (workers,), in samples per second.

    Args:
        architecture: The kind of the networks.
        model: The networks' weights, center and spread, (workers, ...).
        block: The last three iterations, (3, 4, workers); see `predictors.time_series.inputs`.
    """
    given = inputs(block)[..., : len(architecture.channels)]
    standard = standardised(given, model[CENTER], model[SPREAD], architecture.channels)
    output: Array = architecture.forward(np, model, standard)[0]
    return output * model[SPREAD][:, SPEED] + model[CENTER][:, SPEED]


def standardised(given: Array, center: Array, spread: Array, channels: tuple[int, ...]) -> Array:
    """Scale inputs to mean 0 and standard deviation 1, and clip them to 5 deviations.

    Args:
        given: The inputs, (samples, workers, inputs).
        center: Means of speed, CPU usage and memory usage, (workers, 3).
        spread: Standard deviations of the same, (workers, 3).
        channels: The channel of each input.
    """
    chosen = list(channels)
    return np.clip((given - center[:, chosen]) / spread[:, chosen], -_LIMIT, _LIMIT)


def _narx(ops: Any, weights: Mapping[str, Any], x: Any) -> Any:
    hidden = ops.tanh(ops.einsum("bwi,wiu->bwu", x, weights["hidden"]) + weights["hidden_bias"])
    return _readout(ops, weights, hidden)


def _simple_rnn(ops: Any, weights: Mapping[str, Any], x: Any) -> Any:
    latest, before = _entering(weights, x)
    state = ops.tanh(before)
    state = ops.tanh(latest + ops.einsum("bwu,wuv->bwv", state, weights["recurrent"]))
    return _readout(ops, weights, state)


def _lstm(ops: Any, weights: Mapping[str, Any], x: Any) -> Any:
    latest, before = _entering(weights, x)
    state, cell = _lstm_step(ops, before, 0.0)
    state, _ = _lstm_step(ops, latest + ops.einsum("bwu,wuv->bwv", state, weights["recurrent"]), cell)
    return _readout(ops, weights, state)


def _lstm_step(ops: Any, gates: Any, cell: Any) -> tuple[Any, Any]:
    admit, keep, show = (_sigmoid(ops, gates[..., k * UNITS : (k + 1) * UNITS]) for k in range(3))
    cell = keep * cell + admit * ops.tanh(gates[..., 3 * UNITS :])
    return show * ops.tanh(cell), cell


def _entering(weights: Mapping[str, Any], x: Any) -> tuple[Any, Any]:
    """Return what the latest speed and the one before add to a recurrent layer, (samples, workers, units)."""
    latest, before = (x[:, :, step, None] * weights["input"] + weights["bias"] for step in (0, 1))
    return latest, before


def _readout(ops: Any, weights: Mapping[str, Any], hidden: Any) -> Any:
    return ops.einsum("bwu,wu->bw", hidden, weights["output"]) + weights["output_bias"]


def _sigmoid(ops: Any, x: Any) -> Any:
    return 0.5 + 0.5 * ops.tanh(0.5 * x)  # NumPy has no sigmoid


_OUTPUT = {"output": (UNITS,), "output_bias": ()}

NARX = Architecture(
    {"hidden": (len(INPUTS), UNITS), "hidden_bias": (UNITS,), **_OUTPUT}, channels=INPUTS, forward=_narx
)
"""LB-BSP, equation 4: one hidden layer over the last two speeds, the usage then and the current usage."""

SIMPLE_RNN = Architecture(
    {"input": (UNITS,), "recurrent": (UNITS, UNITS), "bias": (UNITS,), **_OUTPUT},
    channels=(SPEED, SPEED),
    forward=_simple_rnn,
)
"""Elman's network over the last two speeds (LB-BSP, section 5.4)."""

LSTM = Architecture(
    {"input": (4 * UNITS,), "recurrent": (UNITS, 4 * UNITS), "bias": (4 * UNITS,), **_OUTPUT},
    channels=(SPEED, SPEED),
    forward=_lstm,
)
"""Long short-term memory over the last two speeds (LB-BSP, section 5.4)."""

ARCHITECTURES: Mapping[str, Architecture] = {"narx": NARX, "simple_rnn": SIMPLE_RNN, "lstm": LSTM}
"""The architectures by the names of their predictors."""
