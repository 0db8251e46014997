"""PyTorch: learning-rate schedules that are stepped once a batch, where an iteration takes several passes.

A worker computes a lost part of a batch in one more pass of its loop, and repeats iterations where the job
was rewound. Such a pass must not count for a schedule, which would be ahead of the other workers'.
"""

import copy
import gc
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler


class Schedules:
    """The schedulers of torch.optim on an optimiser, with the options that they change.

    Args:
        optimizer: The optimiser.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._saved: list[tuple[dict[str, Any], dict[str, Any]]] = []  # where it belongs, and what

    def save(self) -> None:
        """Save the schedulers' state, so that the steps until `restore` do not count."""
        # An optimiser does not know its schedulers: search for them, once for each repeated pass.
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
        """Restore the state that was saved, if there is one."""
        for state, saved in self._saved:
            state.update(saved)
        self._saved = []


def _copied(state: dict[str, Any], but: str) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)
        for name, value in state.items()
        if name != but
    }
