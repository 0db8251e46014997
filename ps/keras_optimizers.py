"""Keras's optimisers on PyTorch's tensors: the formulas of Keras 3, with the interface of torch.optim.

They differ from torch.optim's: SGD's momentum includes the learning rate, Adam's epsilon is added to the
uncorrected root, and weight decay never goes through the gradient. Some numbers are rounded to float32 first,
since TensorFlow does that with Python's. Nothing here imports Keras.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch


class KerasSGD(torch.optim.Optimizer):
    """`keras.optimizers.SGD`: m = momentum m - lr g; w = w + m, or w + momentum m - lr g with nesterov.

    Its state is "momentum", if there is momentum.

    Args:
        params: As for every optimiser of torch.optim.
        lr: Learning rate; at least 0.
        momentum: 0 to 1.
        nesterov: Whether to use Nesterov's momentum.
        weight_decay: lr times this times the parameter is subtracted before the step; at least 0.

    Raises:
        ValueError: A value is not allowed.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        _check(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if momentum > 1:
            raise ValueError(f"momentum {momentum}: must be from 0 to 1")
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step with the parameters' gradients; a closure is not called."""
        for group, parameter, gradient, state in _each(self):
            lr, momentum = group["lr"], _rounded(group["momentum"])
            _decay(parameter, group)
            if not momentum:
                parameter.add_(gradient, alpha=-lr)
                continue
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(parameter)
            velocity = state["momentum"].mul_(momentum).add_(gradient, alpha=-lr)
            if group["nesterov"]:
                parameter.add_(velocity, alpha=momentum).add_(gradient, alpha=-lr)
            else:
                parameter.add_(velocity)


class KerasAdam(torch.optim.Optimizer):
    """`keras.optimizers.Adam` and AdamW, which differ in their defaults alone.

    m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g²; with t the number of this step, from 1,
    w = w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps). With amsgrad, the largest v so far
    takes v's place. The state is "step", as torch.optim's, "momentum", "velocity" and "velocity_hat".

    Args:
        params: As for every optimiser of torch.optim.
        lr: Learning rate; at least 0.
        betas: beta1 and beta2; at least 0, and less than 1.
        eps: The "epsilon hat" of Kingma and Ba's paper, section 2; at least 0.
        amsgrad: Whether v never becomes smaller.
        weight_decay: lr times this times the parameter is subtracted before the step; at least 0.

    Raises:
        ValueError: A value is not allowed.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-7,
        amsgrad: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        _check(lr=lr, eps=eps, weight_decay=weight_decay)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"beta1 and beta2 {betas}: must be at least 0, and less than 1")
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "amsgrad": amsgrad, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step with the parameters' gradients; a closure is not called."""
        for group, parameter, gradient, state in _each(self):
            beta1, beta2 = group["betas"]
            if "step" not in state:
                state["step"] = torch.tensor(0.0)
                state["momentum"] = torch.zeros_like(parameter)
                state["velocity"] = torch.zeros_like(parameter)
                if group["amsgrad"]:
                    state["velocity_hat"] = torch.zeros_like(parameter)
            state["step"] += 1
            _decay(parameter, group)
            state["momentum"].lerp_(gradient, 1 - beta1)
            velocity = state["velocity"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            if group["amsgrad"]:
                velocity = torch.maximum(state["velocity_hat"], velocity, out=state["velocity_hat"])
            # In the parameters' own precision, as Keras: of float32, little is left in the first steps.
            step = state["step"].to(parameter.dtype)
            power1, power2 = (
                torch.tensor(_rounded(b), dtype=parameter.dtype) ** step for b in group["betas"]
            )
            rate = float(group["lr"] * torch.sqrt(1 - power2) / (1 - power1))
            parameter.addcdiv_(state["momentum"], velocity.sqrt().add_(group["eps"]), value=-rate)


def _each(
    optimizer: torch.optim.Optimizer,
) -> Iterable[tuple[dict[str, Any], torch.Tensor, torch.Tensor, dict[str, Any]]]:
    """Yield group, parameter, gradient and state of each parameter that has a gradient."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield group, parameter, parameter.grad, optimizer.state[parameter]


def _decay(parameter: torch.Tensor, group: dict[str, Any]) -> None:
    if group["weight_decay"]:
        parameter.mul_(1 - group["lr"] * _rounded(group["weight_decay"]))


def _rounded(value: float) -> float:
    """Round a number to float32."""
    return torch.tensor(value, dtype=torch.float32).item()


def _check(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} {value}: must be at least 0")
