"""PyTorch: learning-rate schedules that are stepped once a batch, where an iteration takes several passes.

A worker does a part of a batch that another has lost in one more pass of its loop, and goes through an
iteration again where the job was rewound. Such a pass must not count for a schedule, or it is ahead of the
other workers'.
"""

import copy
import gc
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler


class Schedules:
    """The schedulers of torch.optim on an optimiser, with what they have changed in it.

    Args:
        optimizer: Theirs.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._held: list[tuple[dict[str, Any], dict[str, Any]]] = []  # where it belongs, and what

    def hold(self) -> None:
        """Remember where they are: the steps until `put_back` are not to count."""
        # An optimiser does not know its schedulers. The search takes a moment, once for each repeated pass.
        schedulers = [
            vars(found)
            for found in gc.get_objects()
            if issubclass(type(found), LRScheduler) and getattr(found, "optimizer", None) is self._optimizer
        ]
        groups = self._optimizer.param_groups
        self._held = [
            *((state, _copied(state, "optimizer")) for state in schedulers),
            *((group, _copied(group, "params")) for group in groups),
        ]

    def put_back(self) -> None:
        """Undo what has changed since `hold`, if that was called."""
        for state, held in self._held:
            state.update(held)
        self._held = []


def _copied(state: dict[str, Any], but: str) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)
        for name, value in state.items()
        if name != but
    }
