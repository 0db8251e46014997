"""An optimiser's state: as slots, which are flat arrays by the optimiser's own names, or copied as it is.

What it keeps for a parameter and is of the parameter's shape is a slot; under "step" it may count its steps.
No optimiser is named here, so that whatever `ps.optimizers` has can be saved.
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
    """An optimiser's state.

    Attributes:
        steps: That it has taken.
        slots: By name, (elements,) each; what is left out is zero.
    """

    steps: int = 0
    slots: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """Parameters and optimiser, to go on from as if nothing had happened.

    Attributes:
        layout: With the options that hold by now.
        version: Steps of the job so far.
        steps: That the optimiser has taken.
        parameters: (elements,).
        state: For each group that the optimiser steps, what it keeps by its own names: tensors of the group's
            elements, and numbers.
    """

    layout: Layout
    version: int
    steps: int
    parameters: torch.Tensor
    state: Sequence[Mapping[str, torch.Tensor | float]]

    def copied(self) -> "Snapshot":
        """The same in memory of its own, so that the shard can go on; other threads can do so meanwhile."""
        state = [
            {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in own.items()}
            for own in self.state
        ]
        return replace(self, parameters=self.parameters.clone(), state=state)


def slot_names(name: str, options: Mapping[str, float]) -> set[str]:
    """The slots that an optimiser has once it steps with these options."""
    one = kept(name, frozenset(options.items()))
    return {key for key, value in one.items() if _is_slot(key, value, torch.Size([1]))}


def present(optimizer: torch.optim.Optimizer) -> list[str]:
    """The slots that there are by now, in any of the parameters' states."""
    return sorted(
        {
            key
            for part, own in optimizer.state.items()
            for key, value in own.items()
            if _is_slot(key, value, part.shape)
        }
    )


def read(optimizer: torch.optim.Optimizer, slot: str, into: Sequence[torch.Tensor]) -> None:
    """Copy a slot into a tensor for each parameter group, which has one parameter; 0 where there is none."""
    for group, target in zip(optimizer.param_groups, into, strict=True):
        own = optimizer.state.get(group["params"][0], {})
        target.copy_(own[slot]) if slot in own else target.zero_()


def load(
    optimizer: torch.optim.Optimizer,
    name: str,
    options: Sequence[Mapping[str, float]],
    steps: int,
    slots: Mapping[str, Sequence[torch.Tensor]],
) -> None:
    """Let a new optimiser go on from a state, as if it had taken its steps.

    Args:
        optimizer: With one parameter in each group.
        name: As it was made with.
        options: Of each group, as it was made with. Where they have no use for a slot, it is left out, as
            torch.optim would have it.
        steps: Taken so far.
        slots: A tensor for each group, taken over without a copy; a slot that is left out is zero.
    """
    if not slots:
        return  # before the first step
    for number, (group, values) in enumerate(zip(optimizer.param_groups, options, strict=True)):
        part = group["params"][0]
        for key, value in kept(name, frozenset(values.items())).items():
            if key == "step":
                counted = torch.full_like(value, steps) if isinstance(value, torch.Tensor) else steps
                optimizer.state[part][key] = counted
            elif _is_slot(key, value, torch.Size([1])):
                given = slots.get(key)
                optimizer.state[part][key] = torch.zeros_like(part) if given is None else given[number]


def whole(optimizer: torch.optim.Optimizer) -> list[dict[str, torch.Tensor | float]]:
    """All that an optimiser keeps, for each parameter in turn: its own tensors of its shape, and numbers."""
    parts = [part for group in optimizer.param_groups for part in group["params"]]
    return [dict(optimizer.state.get(part, {})) for part in parts]


def put_back(optimizer: torch.optim.Optimizer, state: Sequence[Mapping[str, torch.Tensor | float]]) -> None:
    """Let a new optimiser go on from what `whole` gave, which is taken over without a copy."""
    parts = [part for group in optimizer.param_groups for part in group["params"]]
    for part, own in zip(parts, state, strict=True):
        if own:
            optimizer.state[part] = dict(own)


@functools.lru_cache(maxsize=64)  # most groups have the same options
def kept(name: str, options: frozenset[tuple[str, float]]) -> Mapping[str, Any]:
    """What an optimiser keeps for a parameter of one element after its first step; not to be changed."""
    part = torch.zeros(1)
    part.grad = torch.zeros(1)
    optimizer = make_optimizer(name, [part], [dict(options)])
    optimizer.step()
    return dict(optimizer.state[part])


def _is_slot(key: str, value: Any, shape: torch.Size) -> bool:
    return key != "step" and isinstance(value, torch.Tensor) and value.shape == shape
