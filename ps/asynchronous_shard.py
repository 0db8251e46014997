"""A shard for ASP and SSP: every worker's gradient is a step of its own, taken once it has arrived.

This is what TensorFlow's asynchronous parameter server does. How far workers may be apart, the only
difference between SSP and ASP, is the manager's business. This module knows no sockets and no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from idl.plan import Assignment
from ps.parameters import Contribution, Parameters


@dataclass
class _Push(Contribution):
    """A worker's gradient for its slice of one iteration."""

    iteration: int = -1


class AsynchronousShard(Parameters):
    """A shard that steps with each worker's mean gradient over its own slice, however many samples it has.

    A gradient is held until it is complete; if its connection breaks, the part that had arrived is dropped.
    The version is the number of steps, over all workers. Options are each worker's own, since a learning
    rate that one worker lowers in its next epoch is not meant for the gradients of the workers behind it.

    Args:
        layout: Layout of the shard's part of the parameters.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._pushes: dict[str, _Push] = {}  # by worker: the gradient that is arriving, or waits for its step
        self._applied: dict[str, int] = {}  # by worker: the iteration of its last gradient that was applied
        self._options: dict[str, list[dict[str, Any]]] = {}  # by worker: for its next step, by group

    def start_worker(self, worker: str, groups: Sequence[Group]) -> None:
        """Set the options that a worker starts with.

        Raises:
            InvalidRequestError: It uses amsgrad and the job does not, or the other way round.
        """
        self._options[worker] = self._changes(groups)

    def set_options(self, contribution: Contribution, groups: Sequence[Group]) -> None:
        """Change the options for a worker's own gradients; see `Parameters.set_options`."""
        changes = self._changes(groups)
        for own, change in zip(self._options.setdefault(contribution.worker, changes), changes, strict=True):
            own.update(change)

    def check_options(self, worker: str) -> None:
        """Accept any options: each worker's own hold for its gradients."""

    def _changes(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        changes = self._checked(groups)
        for change, first in zip(changes, self._translated(self.layout.groups), strict=True):
            if change.get("amsgrad", False) != first.get("amsgrad", False):
                # The optimiser's state, which all share, depends on it.
                raise InvalidRequestError("amsgrad must be the same for all workers, and may not change")
        return changes

    def has_used(self, part: Assignment, worker: str = "") -> bool:
        """Return whether the worker's gradient was applied already, so that only the answer was lost."""
        return part.iteration <= self._applied.get(worker, -1)

    def begin(
        self, part: Assignment, worker: str = "", early: str = "", weight: float | None = None
    ) -> Contribution:
        """Begin a worker's push; it replaces an earlier one that is incomplete or not applied yet.

        Raises:
            InvalidRequestError: There are no parameters yet.
        """
        if not self.initialised:
            raise InvalidRequestError("push before the parameters are initialised")
        push = _Push(
            part.start, part.count, worker, held=self._buffer(), iteration=part.iteration, weight=weight
        )
        self._pushes[worker] = push
        return push

    def add(self, contribution: Contribution, piece: torch.Tensor) -> None:
        """Store the gradient's next elements, (n,)."""
        assert contribution.held is not None
        end = contribution.done + len(piece)
        contribution.held[contribution.done : end] = piece
        contribution.done = end

    def interrupt(self, contribution: Contribution) -> None:
        """Drop the gradient; a worker that pushes it again starts from its first element."""
        contribution.open = False
        self._pushes = {w: push for w, push in self._pushes.items() if push is not contribution}

    def forfeit(self, iteration: int, start: int, count: int, total: int) -> None:
        """Do nothing: in these modes no worker waits for another."""

    def drop(self) -> None:
        """Drop the gradients that are arriving or wait for their steps."""
        self._pushes.clear()

    @property
    def is_complete(self) -> bool:
        """Return whether a gradient has arrived completely."""
        return self._next_push() is not None

    def step(self) -> None:
        """Take the optimiser's step with one gradient; one without weight changes nothing."""
        push = self._next_push()
        assert push is not None
        assert push.held is not None
        del self._pushes[push.worker]
        self._applied[push.worker] = push.iteration
        if push.mass:
            options = self._options.get(push.worker) or self._translated(self.layout.groups)
            for group, values in zip(self._optimizer.param_groups, options, strict=True):
                group.update({**self._optimizer.defaults, **values})
            self._gradient.copy_(push.held)
            self._apply()
        self._spare.append(push.held)
        push.held = None
        self.version += 1

    def _next_push(self) -> _Push | None:
        return next((p for p in self._pushes.values() if p.done == self.layout.elements), None)
