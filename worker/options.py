"""When the optimiser's options changed, so that iterations that are gone through again have theirs.

It knows iterations and groups, and neither the wire nor a framework.
"""

from collections import deque
from collections.abc import Sequence

from worker.layout import Group

_CHANGES = 10_000  # that are remembered; no job goes back further


class Options:
    """The changes of the parameter groups' options that one worker has told the parameter server.

    A job that is rewound takes its options from the shards' checkpoints. What had changed since is to be told
    again, in the same iterations; the loop's own schedule is further on by then.
    """

    def __init__(self) -> None:
        self._changes: deque[tuple[int, Sequence[Group]]] = deque(maxlen=_CHANGES)
        self._reached = -1  # the last iteration that a gradient was pushed for, ever
        self._pushed = -1  # and since the job was last rewound
        self._changed: Sequence[Group] | None = None  # for the next iteration that is new

    def due(self, iteration: int, changed: Sequence[Group] | None) -> Sequence[Group] | None:
        """What is to be told with a gradient.

        Args:
            iteration: The gradient's.
            changed: The groups, if the loop has changed their options since the last gradient.

        Returns:
            The groups; None where nothing has changed.
        """
        self._changed = changed or self._changed
        if iteration > self._reached:
            self._reached = iteration
            if self._changed is not None:
                self._changes.append((iteration, self._changed))
                self._changed = None
        due = None
        for since, groups in reversed(self._changes):
            if since <= iteration:
                due = groups if since > self._pushed else None
                break
        self._pushed = iteration
        return due

    def rewind(self, iteration: int) -> None:
        """The job goes on from an iteration, and has forgotten all later changes."""
        self._pushed = min(self._pushed, iteration - 1)
