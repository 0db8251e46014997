"""Keras's optimisers in the parameter server's terms: names, options, and the slots of their state.

This module reads an optimiser's attributes only; `worker.keras.optimizer` changes its variables.
"""

from typing import Any

import keras

from idl.errors import InvalidRequestError

_NAMES = {
    keras.optimizers.SGD: "keras_sgd",
    keras.optimizers.Adam: "keras_adam",
    keras.optimizers.AdamW: "keras_adamw",
}
_CLIPPING = "it would act on the whole batch's gradient, which no worker has"
_LACKING = {
    "clipnorm": _CLIPPING,
    "clipvalue": _CLIPPING,
    "global_clipnorm": _CLIPPING,
    "use_ema": "the parameter server keeps no averages of the parameters",
    "gradient_accumulation_steps": "the parameter server steps with each batch; make the batches larger",
}


def describe_keras(optimizer: Any) -> tuple[str, dict[str, float]]:
    """Return an optimiser's name and options on the wire, without lr, which may be a schedule.

    Raises:
        InvalidRequestError: The parameter server lacks this kind of optimiser, or an option that is
            switched on.
    """
    name = _NAMES.get(type(optimizer))
    if name is None:
        raise InvalidRequestError(
            f"{type(optimizer).__name__}: the parameter server has SGD, Adam and AdamW of keras.optimizers"
        )
    for option, why in _LACKING.items():
        if getattr(optimizer, option):
            raise InvalidRequestError(f"{option}={getattr(optimizer, option)}: {why}")
    options = {"weight_decay": float(optimizer.weight_decay or 0.0)}
    if name == "keras_sgd":
        return name, {
            **options,
            "momentum": float(optimizer.momentum),
            "nesterov": float(optimizer.nesterov),
        }
    return name, {
        **options,
        "beta1": float(optimizer.beta_1),
        "beta2": float(optimizer.beta_2),
        "eps": float(optimizer.epsilon),
        "amsgrad": float(optimizer.amsgrad),
    }


def slots(optimizer: Any) -> dict[str, list[Any]]:
    """Return the variables that hold a built optimiser's state, by the parameter server's slot names.

    Each slot has one for each variable that the optimiser was built with, in their order.
    """
    if isinstance(optimizer, keras.optimizers.SGD):
        return {"momentum": optimizer.momentums} if optimizer.momentums else {}
    found = {"momentum": optimizer._momentums, "velocity": optimizer._velocities}
    return {**found, "velocity_hat": optimizer._velocity_hats} if optimizer.amsgrad else found
