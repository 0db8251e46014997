"""The optimiser's options of each iteration, so that a repeated iteration has those that it had before.

This module knows iterations and groups, and neither the wire nor a framework.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from idl.layout import Group

_CHANGES = 10_000  # changes that are remembered; no job goes back further


class StepOptions:
    """The parameter groups' options in each iteration, as one worker's loop has set them.

    Every gradient is pushed with the options of its iteration. An iteration that is repeated, since a part of
    its batch was lost or the job was rewound, keeps its options: the loop's own schedule may be further on.

    Args:
        groups: The groups with the options that the loop begins with; None without a parameter server.
    """

    def __init__(self, groups: Sequence[Group] | None = None) -> None:
        self.reached = -1  # the latest iteration that the loop has gone through; -1 before the first
        # First iteration, groups with some options, and the options' values, one group's after the other's: a
        # schedule that is stepped in each iteration changes values alone, which take little memory.
        self._changes: deque[tuple[int, Sequence[Group], NDArray[np.float64]]] = deque(maxlen=_CHANGES)
        self._now = groups  # with the loop's present options
        self._noted: Sequence[Group] | None = None  # those that were noted last

    def at(self, iteration: int, changed: Sequence[Group] | None = None) -> Sequence[Group] | None:
        """Return the options of an iteration that is being finished.

        Args:
            iteration: The iteration.
            changed: The groups, if the loop has changed their options since the last call.

        Returns:
            The groups; None where they are unknown, since this worker joined after that iteration.
        """
        self._now = changed or self._now
        if iteration > self.reached:
            self.reached = iteration
            if self._now is not None and self._now is not self._noted:
                self._note(iteration, self._now)
                self._noted = self._now
            return self._now
        for since, groups, values in reversed(self._changes):
            if since <= iteration:
                return _with_values(groups, values)
        return None

    def upcoming(self, changed: Sequence[Group] | None = None) -> Sequence[Group] | None:
        """Return what `at` would return for an iteration that the loop has not gone through."""
        return changed or self._now

    def _note(self, iteration: int, groups: Sequence[Group]) -> None:
        """Remember the options from an iteration on, where they are others than before."""
        values = np.array([value for group in groups for value in group.options.values()], np.float64)
        if self._changes:
            _, like, last = self._changes[-1]
            if _names(like) != _names(groups):
                like = groups
            elif np.array_equal(values, last):
                return
        else:
            like = groups
        self._changes.append((iteration, like, values))


def _names(groups: Sequence[Group]) -> list[tuple[int, bool, tuple[str, ...]]]:
    return [(group.elements, group.statistics, tuple(group.options)) for group in groups]


def _with_values(groups: Sequence[Group], values: NDArray[np.float64]) -> tuple[Group, ...]:
    """Return groups with other values of their options."""
    left = iter(values.tolist())
    return tuple(replace(group, options={name: next(left) for name in group.options}) for group in groups)
