"""PyTorch: conversion of an optimiser's state to and from the flat arrays of the parameter server.

This module knows the state of torch.optim's optimisers, and neither the session nor the loop.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from worker.optimizer_state import OptimizerState

_IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")  # options that change no result


def views(flat: NDArray[Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of a flat array in the tensors' shapes."""
    parts = torch.split(torch.from_numpy(flat), [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


@torch.no_grad()
def take_state(
    optimizer: torch.optim.Optimizer, tensors: Sequence[torch.Tensor], like: NDArray[Any]
) -> OptimizerState | None:
    """Move an optimiser's state, as after `load_state_dict`, into flat arrays; the optimiser then has none.

    Args:
        optimizer: The optimiser.
        tensors: The tensors in the order of the elements. Those without a state have zeros.
        like: (elements,), an array of the flat arrays' dtype.

    Returns:
        The state, or None if the optimiser has not taken a step.

    Raises:
        InvalidRequestError: The parameters have taken different numbers of steps.
    """
    slots: dict[str, NDArray[Any]] = {}
    steps = set()
    for number, tensor in enumerate(tensors):
        for key, value in optimizer.state.get(tensor, {}).items():
            if key == "step":
                steps.add(int(value))
            elif isinstance(value, torch.Tensor) and value.shape == tensor.shape:
                slot = slots.setdefault(key, np.zeros_like(like))
                views(slot, tensors)[number].copy_(value)
    if len(steps) > 1:
        raise InvalidRequestError(
            f"the optimiser's state is of parameters with {', '.join(map(str, sorted(steps)))} steps: "
            f"the parameter server steps all of them together"
        )
    optimizer.state.clear()
    return OptimizerState(steps.pop() if steps else 0, slots) if slots else None


@torch.no_grad()
def put_state(
    optimizer: torch.optim.Optimizer, tensors: Sequence[torch.Tensor], state: OptimizerState
) -> None:
    """Give an optimiser the state that it would have if it had taken the steps itself.

    Args:
        optimizer: An optimiser without a state.
        tensors: The tensors in the order of the elements.
        state: The parameter server's state.
    """
    if not state.slots:
        return
    slots = {slot: views(array, tensors) for slot, array in state.slots.items()}
    place = {tensor: number for number, tensor in enumerate(tensors)}
    for group in optimizer.param_groups:
        template = _kept(type(optimizer), group)
        for tensor in group["params"]:
            if tensor not in place:
                continue  # it is not trained
            for key, value in template.items():
                if key == "step":
                    optimizer.state[tensor][key] = torch.full_like(value, state.steps)
                elif key in slots:
                    own = torch.empty_like(tensor, memory_format=torch.preserve_format)
                    optimizer.state[tensor][key] = own.copy_(slots[key][place[tensor]])


def _kept(kind: Callable[..., torch.optim.Optimizer], group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries for a parameter of one element after an optimiser's first step."""
    part = torch.zeros(1)
    part.grad = torch.zeros(1)
    options = {name: value for name, value in group.items() if name not in ("params", *_IMPLEMENTATION)}
    optimizer = kind([{"params": [part], **options}])
    with torch.enable_grad():
        optimizer.step()
    return dict(optimizer.state[part])
