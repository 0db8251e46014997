"""Keras's optimisers as the parameter server knows them: names, numbers, and the slots of their state.

It knows an optimiser's attributes alone; what becomes of its variables is for `keras_optimizer`.
"""

from typing import Any

import keras

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
    """An optimiser's name and options, as they go over the wire; without lr, which may be a schedule.

    Raises:
        ValueError: It is of a kind, or has an option switched on, that the parameter server lacks.
    """
    name = _NAMES.get(type(optimizer))
    if name is None:
        raise ValueError(
            f"{type(optimizer).__name__}: the parameter server has SGD, Adam and AdamW of keras.optimizers"
        )
    for option, why in _LACKING.items():
        if getattr(optimizer, option):
            raise ValueError(f"{option}={getattr(optimizer, option)}: {why}")
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
    """The variables that hold a built optimiser's state, by the parameter server's names for them.

    Each has one for each variable that the optimiser was built with, in their order.
    """
    if isinstance(optimizer, keras.optimizers.SGD):
        return {"momentum": optimizer.momentums} if optimizer.momentums else {}
    found = {"momentum": optimizer._momentums, "velocity": optimizer._velocities}
    return {**found, "velocity_hat": optimizer._velocity_hats} if optimizer.amsgrad else found
