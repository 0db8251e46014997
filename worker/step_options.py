"""The optimiser's options of each iteration, so that a repeated iteration has those that it had before.

This module knows iterations and groups, and neither the wire nor a framework.
"""

from collections import deque
from collections.abc import Sequence

from idl.layout import Group

_CHANGES = 10_000  # changes that are remembered; no job goes back further


class StepOptions:
    """The parameter groups' options in each iteration, as one worker's loop has set them.

    Every gradient is pushed with the options of its iteration. An iteration that is repeated, since a part of
    its batch was lost or the job was rewound, keeps its options: the loop's own schedule may be further on.

    Args:
        groups: The groups with the options that the loop begins with; None without a parameter server.

    Attributes:
        reached: The latest iteration that the loop has gone through; -1 before the first.
    """

    def __init__(self, groups: Sequence[Group] | None = None) -> None:
        self.reached = -1
        self._changes: deque[tuple[int, Sequence[Group]]] = deque(maxlen=_CHANGES)
        self._now = groups  # with the loop's present options

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
            if self._now is not None and (not self._changes or self._changes[-1][1] != self._now):
                self._changes.append((iteration, self._now))
            return self._now
        return next((groups for since, groups in reversed(self._changes) if since <= iteration), None)
