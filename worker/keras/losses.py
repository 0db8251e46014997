"""Keras: what the losses that a model is compiled with are means over.

By default Keras divides the sum of a loss by the number of its elements, sample weights or not; where the
output has a mask, by the number of elements that are not masked; and with the reduction
"mean_with_sample_weight" by the sum of the sample weights. Only the first is a mean over samples.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import get_keras_mask  # which has no public name
from keras.src.losses.loss import apply_mask  # likewise

from idl.errors import InvalidRequestError
from worker.session import Session

_BY = "the loss of the model"
_WEIGHTED = "mean_with_sample_weight"
_MEANS = ("sum_over_batch_size", "mean", _WEIGHTED)


class LossWeights:
    """Notes the weight of each gradient that a model's step computes, as its losses are computed.

    In a job whose gradients are means over samples, it warns, once, of a loss that is none.

    Args:
        failed: Called with an error, of which TensorFlow's graphs pass on the text alone.
    """

    def __init__(self, session: Session, failed: Callable[[Exception], None]) -> None:
        self._session = session
        self._failed = failed
        self._is_training = False  # whether a step is computed, or traced
        self._has_warned = False

    def within(self, model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the model's step, in which the losses that it was compiled with are watched."""

        @functools.wraps(step)
        def watched(data: Any) -> Any:
            self._watch(model)
            self._is_training = True
            try:
                return step(data)
            finally:
                self._is_training = False

        return watched

    def _watch(self, model: Any) -> None:
        """Watch the losses of a model, in place."""
        compiled = model._compile_loss
        if compiled is None or not compiled.built:  # the step has a loss of its own
            return
        compiled._flat_losses = [
            one if isinstance(one.loss, _Watched) else one._replace(loss=_Watched(one.loss, self))
            for one in compiled._flat_losses
        ]

    def take(self, loss: Any, losses: Any, y_pred: Any, sample_weight: Any) -> None:
        """Note what a loss is a mean over, where it is one of Keras's, with losses of single elements.

        Args:
            losses: Its losses, (samples, ...), before they are reduced to a mean.

        Raises:
            InvalidRequestError: The job has weights, and the loss is a sum.
        """
        if not self._is_training or not losses.shape.rank:
            return
        weights = self._session.weights
        if weights.are_given and loss.reduction not in _MEANS:
            raise InvalidRequestError(
                f"loss {loss.name}: reduction={loss.reduction!r}: with weight= it must be a mean, by one of "
                f"{', '.join(_MEANS)}"
            )
        masks = [mask for mask in map(get_keras_mask, (y_pred, losses)) if mask is not None]
        counted = functools.reduce(tf.logical_and, masks) if masks else None
        if loss.reduction == _WEIGHTED:
            counted = apply_mask(sample_weight, counted, "float64", _WEIGHTED)
        if weights.are_given:
            weight = tf.shape(losses)[0] if counted is None else tf.reduce_sum(tf.cast(counted, "float64"))
            tf.numpy_function(self._note, [tf.cast(weight, "float64")], [])
        elif counted is not None and not self._has_warned:
            self._has_warned = True
            self._session.log.of(__name__).warning(
                "%s is a mean over %s, but gradients are weighted by samples, so that the result depends on "
                'the split: make evenpace.keras.DataLoader with weight="loss", on all workers',
                loss.name,
                "what is not masked, as by Embedding(mask_zero=True)" if masks else "the sample weights' sum",
            )

    def _note(self, weight: np.float64) -> None:
        try:
            self._session.weights.note(float(weight), _BY)
        except Exception as error:
            self._failed(error)
            raise


class _Watched:
    """A loss that has its weight noted when it is called, in place of that which a model was compiled with.

    Args:
        loss: The loss, a `keras.Loss`.
    """

    def __init__(self, loss: Any, weights: LossWeights) -> None:
        self._loss = loss
        self._weights = weights

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        loss, found = self._loss, []
        own = loss.call

        def call(*arguments: Any) -> Any:
            found.append(own(*arguments))
            return found[-1]

        loss.call = call  # which alone gives the losses before their reduction
        try:
            value = loss(y_true, y_pred, sample_weight)
        finally:
            loss.call = own
        for losses in found:
            self._weights.take(loss, keras.ops.convert_to_tensor(losses), y_pred, sample_weight)
        return value
