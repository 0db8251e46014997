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
        groups = self._optimizer.param_groups
        self._saved = [
            *((vars(found), _copied(vars(found), "optimizer")) for found in self.found()),
            *((group, _copied(group, "params")) for group in groups),
        ]

    def found(self) -> list[LRScheduler]:
        """Return the schedulers, which an optimiser does not know: whoever refers to it is looked at.

        They are in the order in which they were made, as far as the garbage collector has kept it.
        """
        states = gc.get_referrers(self._optimizer)  # attributes of objects, or objects that have such
        holders = [one for one in states if isinstance(one, LRScheduler)]
        owners = gc.get_referrers(*(one for one in states if type(one) is dict))
        return [
            one
            for one in {id(found): found for found in (*holders, *owners)}.values()
            if isinstance(one, LRScheduler) and getattr(one, "optimizer", None) is self._optimizer
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
