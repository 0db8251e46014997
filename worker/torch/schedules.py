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
        self._saved: list[tuple[dict[str, Any], dict[str, Any]]] = []  # where it belongs, and what

    def save(self) -> None:
        """Remember where they are: the steps until `restore` are not to count."""
        # An optimiser does not know its schedulers. The search takes a moment, once for each repeated pass.
        schedulers = [
            vars(found)
            for found in gc.get_objects()
            if issubclass(type(found), LRScheduler) and getattr(found, "optimizer", None) is self._optimizer
        ]
        groups = self._optimizer.param_groups
        self._saved = [
            *((state, _copied(state, "optimizer")) for state in schedulers),
            *((group, _copied(group, "params")) for group in groups),
        ]

    def restore(self) -> None:
        """Undo what has changed since `save`, if that was called."""
        for state, saved in self._saved:
            state.update(saved)
        self._saved = []


def _copied(state: dict[str, Any], but: str) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)
        for name, value in state.items()
        if name != but
    }
