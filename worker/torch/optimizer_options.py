"""PyTorch: torch.optim's optimisers in the parameter server's terms: names and options."""

import torch

from idl.optimizers import OPTIMIZERS


def describe(optimizer: torch.optim.Optimizer) -> tuple[str, list[dict[str, float]]]:
    """Return an optimiser's name and each group's options, by the parameter server's names.

    Raises:
        ValueError: The parameter server lacks this kind of optimiser, or an option that is switched on.
    """
    names = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}
    name = names.get(type(optimizer))
    if name is None:
        raise ValueError(
            f"{type(optimizer).__name__}: the parameter server has SGD, Adam and AdamW of torch.optim"
        )
    allowed = OPTIMIZERS[name]
    described = []
    for group in optimizer.param_groups:
        if group.get("maximize"):
            raise ValueError("maximize=True: the parameter server minimises; negate the loss instead")
        if group.get("decoupled_weight_decay") and name == "adam":
            raise ValueError("decoupled_weight_decay=True: use torch.optim.AdamW instead")
        values = {key: float(group[key]) for key in allowed.numbers | allowed.switches if key in group}
        if "betas" in group:
            values["beta1"], values["beta2"] = map(float, group["betas"])
        described.append(values)
    return name, described
