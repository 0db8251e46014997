"""From the wire's names and numbers to optimisers, so that their frameworks' semantics hold exactly.

Those of torch.optim are PyTorch's own; `keras_optimizers` has Keras's in their shape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ps.keras_optimizers import KerasAdam, KerasSGD
from rpc.errors import InvalidRequestError


@dataclass(frozen=True)
class _Kind:
    make: Callable[..., torch.optim.Optimizer]
    numbers: frozenset[str]
    switches: frozenset[str]  # sent as 0 or 1


_ADAM_NUMBERS = frozenset({"lr", "beta1", "beta2", "eps", "weight_decay"})

OPTIMIZERS: dict[str, _Kind] = {
    "sgd": _Kind(
        torch.optim.SGD,
        frozenset({"lr", "momentum", "dampening", "weight_decay"}),
        frozenset({"nesterov"}),
    ),
    "adam": _Kind(torch.optim.Adam, _ADAM_NUMBERS, frozenset({"amsgrad"})),
    "adamw": _Kind(torch.optim.AdamW, _ADAM_NUMBERS, frozenset({"amsgrad"})),
    "keras_sgd": _Kind(KerasSGD, frozenset({"lr", "momentum", "weight_decay"}), frozenset({"nesterov"})),
    "keras_adam": _Kind(KerasAdam, _ADAM_NUMBERS, frozenset({"amsgrad"})),
    "keras_adamw": _Kind(KerasAdam, _ADAM_NUMBERS, frozenset({"amsgrad"})),
}


def prepare() -> None:
    """Import what PyTorch imports only when an optimiser is first made and used, which takes seconds."""
    parameters = torch.zeros(1)
    parameters.grad = torch.zeros(1)
    torch.optim.SGD([parameters]).step()


def make_optimizer(
    name: str, parts: Sequence[torch.Tensor], options: Sequence[Mapping[str, float]]
) -> torch.optim.Optimizer:
    """An optimiser that steps `parts` in place.

    Args:
        name: A name in `OPTIMIZERS`.
        parts: One flat tensor for each parameter group.
        options: Each group's options, by the names in `idl/parameter_server.thrift`.

    Raises:
        InvalidRequestError: The name, an option or its value is not one that there is.
    """
    if name not in OPTIMIZERS:
        raise InvalidRequestError(f"optimizer {name!r}: there are {', '.join(OPTIMIZERS)}")
    kind = OPTIMIZERS[name]
    translated = [translate(name, values) for values in options]
    try:
        for values in translated:
            kind.make([torch.zeros(1)], **values)  # constructors do not check the values in groups
        return kind.make([{"params": [part], **v} for part, v in zip(parts, translated, strict=True)])
    except ValueError as error:
        raise InvalidRequestError(f"optimizer {name}: {error}") from error


def translate(name: str, options: Mapping[str, float]) -> dict[str, Any]:
    """A parameter group's options in torch.optim's terms.

    Raises:
        InvalidRequestError: An option is unknown, `lr` is missing, or only one beta is given.
    """
    kind = OPTIMIZERS[name]
    allowed = kind.numbers | kind.switches
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
        key: bool(value) if key in kind.switches else value
        for key, value in options.items()
        if key not in {"beta1", "beta2"}
    }
    if "beta1" in options:
        translated["betas"] = (options["beta1"], options["beta2"])
    return translated


def describe(optimizer: torch.optim.Optimizer) -> tuple[str, list[dict[str, float]]]:
    """The other way: an optimiser's name and each group's options, as they go over the wire.

    Raises:
        ValueError: It is of a kind, or has an option switched on, that the parameter server lacks.
    """
    names = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}
    name = names.get(type(optimizer))
    if name is None:
        raise ValueError(
            f"{type(optimizer).__name__}: the parameter server has SGD, Adam and AdamW of torch.optim"
        )
    kind = OPTIMIZERS[name]
    described = []
    for group in optimizer.param_groups:
        if group.get("maximize"):
            raise ValueError("maximize=True: the parameter server minimises; negate the loss instead")
        if group.get("decoupled_weight_decay") and name == "adam":
            raise ValueError("decoupled_weight_decay=True: use torch.optim.AdamW instead")
        values = {key: float(group[key]) for key in kind.numbers | kind.switches if key in group}
        if "betas" in group:
            values["beta1"], values["beta2"] = map(float, group["betas"])
        described.append(values)
    return name, described
