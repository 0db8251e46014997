"""PyTorch: conversion of an optimiser's state to and from the flat arrays of the parameter server.

This module knows the state of torch.optim's optimisers, and neither the session nor the loop.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from worker.flat_order import FlatOrder
from worker.optimizer_state import OptimizerState
from worker.torch.flat_tensors import FlatTensors

_IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")  # options that change no result


@torch.no_grad()
def take_state(
    optimizer: torch.optim.Optimizer,
    tensors: Sequence[torch.Tensor],
    order: FlatOrder,
    like: NDArray[Any],
) -> OptimizerState | None:
    """Move an optimiser's state, as after `load_state_dict`, into flat arrays; the optimiser then has none.

    Args:
        optimizer: The optimiser.
        tensors: The tensors. Those without a state have zeros.
        order: The order of their elements.
        like: (elements,), an array of the flat arrays' dtype.

    Returns:
        The state, or None if the optimiser has not taken a step.

    Raises:
        InvalidRequestError: The parameters have taken different numbers of steps.
    """
    slots: dict[str, NDArray[Any]] = {}
    values: dict[str, FlatTensors] = {}  # in the slots
    steps = set()
    for number, tensor in enumerate(tensors):
        for key, value in optimizer.state.get(tensor, {}).items():
            if key == "step":
                steps.add(int(value))
            elif isinstance(value, torch.Tensor) and value.shape == tensor.shape:
                if key not in slots:
                    slots[key] = np.zeros_like(like)
                    values[key] = FlatTensors(slots[key], order, tensors)
                values[key][number] = value
    if len(steps) > 1:
        raise InvalidRequestError(
            f"the optimiser's state is of parameters with {', '.join(map(str, sorted(steps)))} steps: "
            f"the parameter server steps all of them together"
        )
    optimizer.state.clear()
    return OptimizerState(steps.pop() if steps else 0, slots) if slots else None


@torch.no_grad()
def put_state(
    optimizer: torch.optim.Optimizer,
    tensors: Sequence[torch.Tensor],
    order: FlatOrder,
    state: OptimizerState,
) -> None:
    """Give an optimiser the state that it would have if it had taken the steps itself.

    Args:
        optimizer: An optimiser without a state.
        order: The order of their elements.
        state: The parameter server's state.
    """
    if not state.slots:
        return
    slots = {slot: FlatTensors(array, order, tensors) for slot, array in state.slots.items()}
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
