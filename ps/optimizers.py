"""Optimisers made from the names and numbers of the wire, with exactly their frameworks' semantics.

PyTorch's are torch.optim's own; `keras_optimizers` has Keras's with the interface of torch.optim.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from idl.errors import InvalidRequestError
from idl.layout import Layout
from idl.optimizers import OPTIMIZERS
from ps.keras_optimizers import KerasAdam, KerasSGD

DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""PyTorch's dtypes by the names of `idl.layout.ITEM_BYTES`."""

_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "keras_sgd": KerasSGD,
    "keras_adam": KerasAdam,
    "keras_adamw": KerasAdam,
}


def prepare() -> None:
    """Take a step with an optimiser, so that PyTorch's lazy imports, which take seconds, are done early."""
    parameters = torch.zeros(1)
    parameters.grad = torch.zeros(1)
    torch.optim.SGD([parameters]).step()


def make_optimizer(
    name: str, parts: Sequence[torch.Tensor], options: Sequence[Mapping[str, float]]
) -> torch.optim.Optimizer:
    """Make an optimiser that steps `parts` in place.

    Args:
        name: A name in `idl.optimizers.OPTIMIZERS`.
        parts: One flat tensor for each parameter group.
        options: Each group's options, by the names in `idl/parameter_server.thrift`.

    Raises:
        InvalidRequestError: The optimiser, or one of its options, is unknown, or a value is not allowed.
    """
    if name not in OPTIMIZERS:
        raise InvalidRequestError(f"optimizer {name!r}: there are {', '.join(OPTIMIZERS)}")
    make = _CLASSES[name]
    translated = [translate(name, values) for values in options]
    try:
        for values in translated:
            make([torch.zeros(1)], **values)  # constructors do not check the values in groups
        return make([{"params": [part], **v} for part, v in zip(parts, translated, strict=True)])
    except ValueError as error:
        raise InvalidRequestError(f"optimizer {name}: {error}") from error


def check_optimizer(layout: Layout) -> None:
    """Check that an optimiser can step a layout with its options.

    Raises:
        InvalidRequestError: The optimiser's name, an option or its value is not one that there is.
    """
    make_optimizer(layout.optimizer, [torch.zeros(1) for _ in layout.options], layout.options)


def translate(name: str, options: Mapping[str, float]) -> dict[str, Any]:
    """Translate a parameter group's options from the wire's names to torch.optim's.

    Raises:
        InvalidRequestError: An option is unknown, `lr` is missing, or only one beta is given.
    """
    names = OPTIMIZERS[name]
    allowed = names.numbers | names.switches
    for key, value in options.items():
        if key not in allowed:
            raise InvalidRequestError(f"{name} has no option {key!r}; it has {', '.join(sorted(allowed))}")
        if not -1e30 < value < 1e30:
            raise InvalidRequestError(f"{name}: option {key} {value}: must be a finite number")
    if "lr" not in options:
        raise InvalidRequestError(f"{name}: lr is missing")
    if ("beta1" in options) != ("beta2" in options):
        raise InvalidRequestError(f"{name}: beta1 and beta2 go together, but only one is given")
    translated: dict[str, Any] = {
        key: bool(value) if key in names.switches else value
        for key, value in options.items()
        if key not in {"beta1", "beta2"}
    }
    if "beta1" in options:
        translated["betas"] = (options["beta1"], options["beta2"])
    return translated
