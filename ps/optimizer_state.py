"""An optimiser's state: as slots, which are flat arrays by the optimiser's own names, or copied as it is.

A slot is a tensor that the optimiser keeps for a parameter and that has the parameter's shape; under "step"
it may count its steps. No optimiser is named here, so that each of `ps.optimizers` can be saved.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from idl.layout import Layout
from ps.optimizers import make_optimizer


@dataclass(frozen=True)
class State:
    """An optimiser's state."""

    steps: int = 0  # steps that it has taken
    # Flat tensors by name, (elements,) each; a slot that is left out is zero.
    slots: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardSnapshot:
    """Parameters and optimiser's state, from which a shard continues as if it had not been interrupted.

    Attributes:
        state: The optimiser's entries for each group that it steps, by its own names: tensors of the group's
            elements, and numbers.
    """

    layout: Layout  # the shard's layout, with the options that hold now
    version: int  # steps of the job so far
    steps: int  # steps that the optimiser has taken
    parameters: torch.Tensor  # (elements,)
    state: Sequence[Mapping[str, torch.Tensor | float]]

    def copied(self) -> "ShardSnapshot":
        """Copy the snapshot, so that the shard can continue; other threads are not blocked meanwhile."""
        state = [
            {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in own.items()}
            for own in self.state
        ]
        return replace(self, parameters=self.parameters.clone(), state=state)


def slot_names(name: str, options: Mapping[str, float]) -> set[str]:
    """Return the names of the slots that an optimiser has once it has stepped with these options."""
    one = state_template(name, frozenset(options.items()))
    return {key for key, value in one.items() if is_slot(key, value, torch.Size([1]))}


def present_slots(optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of the slots that an optimiser has at present, for any of its parameters."""
    return sorted(
        {
            key
            for part, own in optimizer.state.items()
            for key, value in own.items()
            if is_slot(key, value, part.shape)
        }
    )


def read_slot(optimizer: torch.optim.Optimizer, slot: str, into: Sequence[torch.Tensor]) -> None:
    """Copy a slot into one tensor for each parameter group (of one parameter); 0 where it is missing."""
    for group, target in zip(optimizer.param_groups, into, strict=True):
        own = optimizer.state.get(group["params"][0], {})
        target.copy_(own[slot]) if slot in own else target.zero_()


def load_state(
    optimizer: torch.optim.Optimizer,
    name: str,
    options: Sequence[Mapping[str, float]],
    steps: int,
    slots: Mapping[str, Sequence[torch.Tensor]],
) -> None:
    """Give a new optimiser a state, as if it had taken the steps itself.

    Args:
        optimizer: An optimiser with one parameter in each group.
        options: The options of each group that it was made with. A slot that they do not use is left out, as
            in torch.optim.
        steps: Steps taken so far.
        slots: By name, a tensor for each group, which is not copied; a slot that is left out is zero.
    """
    if not slots:
        return  # before the first step
    for number, (group, values) in enumerate(zip(optimizer.param_groups, options, strict=True)):
        part = group["params"][0]
        for key, value in state_template(name, frozenset(values.items())).items():
            if key == "step":
                counted = torch.full_like(value, steps) if isinstance(value, torch.Tensor) else steps
                optimizer.state[part][key] = counted
            elif is_slot(key, value, torch.Size([1])):
                given = slots.get(key)
                optimizer.state[part][key] = torch.zeros_like(part) if given is None else given[number]


def full_state(optimizer: torch.optim.Optimizer) -> list[dict[str, torch.Tensor | float]]:
    """Return an optimiser's entries for each parameter in turn: its own tensors, not copies, and numbers."""
    parts = [part for group in optimizer.param_groups for part in group["params"]]
    return [dict(optimizer.state.get(part, {})) for part in parts]


def restore_state(
    optimizer: torch.optim.Optimizer, state: Sequence[Mapping[str, torch.Tensor | float]]
) -> None:
    """Give a new optimiser the state that `full_state` returned; its tensors are not copied."""
    parts = [part for group in optimizer.param_groups for part in group["params"]]
    for part, own in zip(parts, state, strict=True):
        if own:
            optimizer.state[part] = dict(own)


@functools.lru_cache(maxsize=64)  # most groups have the same options
def state_template(name: str, options: frozenset[tuple[str, float]]) -> Mapping[str, Any]:
    """Return an optimiser's entries for a parameter of one element after its first step; read-only."""
    part = torch.zeros(1)
    part.grad = torch.zeros(1)
    optimizer = make_optimizer(name, [part], [dict(options)])
    optimizer.step()
    return dict(optimizer.state[part])


def is_slot(key: str, value: Any, shape: torch.Size) -> bool:
    """Return whether an entry of the state of a parameter of this shape is a slot."""
    return key != "step" and isinstance(value, torch.Tensor) and value.shape == shape
