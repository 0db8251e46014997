"""PyTorch: learning rates of an optimiser that steps in the script, by the size of the whole batch."""

from typing import Any

import torch

from worker.exchanges.all_reduce import AllReduce
from worker.learning_rates import Rule, factor_by
from worker.torch.loader import Loader


def scale_lr(optimizer: torch.optim.Optimizer, loader: Loader, rule: Rule = "auto") -> None:
    """Let an optimiser's steps have learning rates that follow the size of the whole batch.

    It is for workers that reduce gradients among themselves; with a parameter server it is
    `distribute(scale_lr=)`. Between steps the rates are the script's own, so that schedulers work as before.

    Args:
        optimizer: Any optimiser of torch.optim, whose `step` is called once for each batch.
        loader: The evenpace loader of the training data.
        rule: "linear", "sqrt", "adascale", "none", or a function from the size of the whole batch and the
            script's first one to the factor; "auto" is "sqrt" for Adam and the like, else "adascale".

    Raises:
        InvalidRequestError: There is no such rule, or the session has a parameter server.
    """
    session = loader.session
    AllReduce.of(
        session.exchange,
        "the session has a parameter server, which takes the steps: give scale_lr= to distribute",
    )
    session.training.scale_lr_by(factor_by(rule, type(optimizer).__name__))
    own: list[tuple[dict[str, Any], Any]] = []  # groups, with the script's rates, within a step

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        after()  # a step that failed has not come so far
        now = session.training.lr_scale
        for group in optimizer.param_groups if now != 1 else ():
            own.append((group, group["lr"]))
            group["lr"] = group["lr"] * now

    def after(*_: Any) -> None:
        for group, rate in own:
            group["lr"] = rate
        own.clear()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
