"""A step of the optimiser that is taken range by range, on copies, before it is certain to be taken.

The parameters and the optimiser's state of the version before stay as they are until `commit`. This module
knows neither gradients' sources nor a wire.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch

from idl.layout import Layout
from ps.optimizer_state import is_slot


class PartialStep:
    """The next step of an optimiser, for the elements up to `end`.

    Each element's step must depend on that element alone, as with all of `ps.optimizers`.

    Args:
        layout: Layout of the shard's part of the parameters.
        optimizer: The optimiser, with one parameter in each group.
    """

    def __init__(self, layout: Layout, optimizer: torch.optim.Optimizer) -> None:
        self.end = 0  # the element up to which the step is taken
        self.parameters = torch.empty(0)  # (elements,), of which those up to `end` are the next version's
        self._layout = layout
        self._optimizer = optimizer
        self._make: Callable[..., torch.optim.Optimizer] = type(optimizer)
        self._parts = [group["params"][0] for group in optimizer.param_groups]
        # Of each part, its entries of the optimiser's state after the step.
        self._states: list[dict[str, Any]] = [{} for _ in self._parts]

    @property
    def is_possible(self) -> bool:
        """Return whether the optimiser has the state that the step needs; it makes it in its first step."""
        return all(
            self._optimizer.state.get(part) or not (group.get("momentum") or "betas" in group)
            for part, group in zip(self._parts, self._optimizer.param_groups, strict=True)
        )

    def advance(self, parameters: torch.Tensor, gradient: torch.Tensor, end: int) -> None:
        """Take the step for the elements from the `end` of before up to another one.

        Args:
            parameters: (elements,) of the version before.
            gradient: (elements,).
            end: The element, not before `end`.
        """
        if end == self.end:
            return
        if self.parameters.shape != parameters.shape:
            self.parameters = torch.empty_like(parameters)
        number = first = 0
        for group in self._layout.groups:
            last = first + group.elements
            low, high = max(self.end, first), min(end, last)
            is_empty = first == last and self.end <= first and (first < end or end == len(parameters))
            if group.statistics:
                if low < high:
                    self.parameters[low:high] = gradient[low:high]
            else:
                if low < high or is_empty:
                    self._step(number, parameters, gradient, first, slice(low, high))
                number += 1
            first = last
        self.end = end

    def commit(self, parameters: torch.Tensor) -> torch.Tensor:
        """Return the parameters after the step, which is complete, and let the optimiser go on with them.

        Args:
            parameters: (elements,) of the version before, whose memory is that of the step after the next.
        """
        stepped, self.parameters = self.parameters, parameters
        first, parts = 0, iter(zip(self._parts, self._states, strict=True))
        for group in self._layout.groups:
            last = first + group.elements
            if not group.statistics:
                part, after = next(parts)
                part.data = stepped[first:last]
                for key, value in after.items():
                    own = self._optimizer.state[part]
                    after[key], own[key] = own[key], value
            first = last
        self.end = 0
        return stepped

    def leave_memory(self) -> None:
        """Take the next step in other memory, since this is still being read."""
        self.parameters = torch.empty(0)

    def _step(
        self, number: int, parameters: torch.Tensor, gradient: torch.Tensor, first: int, elements: slice
    ) -> None:
        """Step some elements of a part, by its number, whose first element is `first`.

        An optimiser of its own does it: whatever fails, the job's has seen nothing of it.
        """
        part, after = self._parts[number], self._states[number]
        inner = slice(elements.start - first, elements.stop - first)
        stepped = self.parameters[elements].copy_(parameters[elements])
        stepped.grad = gradient[elements]
        optimizer = self._make([{**self._optimizer.param_groups[number], "params": [stepped]}])
        own = optimizer.state[stepped]
        for key, value in self._optimizer.state.get(part, {}).items():
            if is_slot(key, value, part.shape):
                if key not in after:
                    after[key] = torch.empty_like(value)
                own[key] = after[key][inner].copy_(value[inner])
            else:
                own[key] = copy.deepcopy(value)  # of the number of steps, which each range counts
        optimizer.step()
        after |= {key: value for key, value in own.items() if not is_slot(key, value, stepped.shape)}
