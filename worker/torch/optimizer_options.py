"""PyTorch: torch.optim's optimisers in the parameter server's terms: names and options."""

import torch

from idl.errors import InvalidRequestError
from idl.optimizers import OPTIMIZERS


def describe(optimizer: torch.optim.Optimizer) -> tuple[str, list[dict[str, float]]]:
    """Return an optimiser's name and each group's options, by the parameter server's names.

    Raises:
        InvalidRequestError: The parameter server lacks this kind of optimiser, or an option that is
            switched on.
    """
    names = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}
    name = names.get(type(optimizer))
    if name is None:
        raise InvalidRequestError(
            f"{type(optimizer).__name__}: the parameter server has SGD, Adam and AdamW of torch.optim"
        )
    allowed = OPTIMIZERS[name]
    described = []
    for group in optimizer.param_groups:
        if group.get("maximize"):
            raise InvalidRequestError(
                "maximize=True: the parameter server minimises; negate the loss instead"
            )
        if group.get("decoupled_weight_decay") and name == "adam":
            raise InvalidRequestError("decoupled_weight_decay=True: use torch.optim.AdamW instead")
        values = {key: float(group[key]) for key in allowed.numbers | allowed.switches if key in group}
        if "betas" in group:
            values["beta1"], values["beta2"] = map(float, group["betas"])
        described.append(values)
    return name, described
