"""The optimiser's options of each iteration, so that those that are gone through again have theirs.

It knows iterations and groups, and neither the wire nor a framework.
"""

from collections import deque
from collections.abc import Sequence

from idl.layout import Group

_CHANGES = 10_000  # that are remembered; no job goes back further


class Options:
    """The parameter groups' options, as one worker's loop has set them for its iterations.

    Every gradient is pushed with the options of its iteration. One that comes again, since a part of its
    batch was lost or the job was rewound, has those that it had: the loop's own schedule may be further on.

    Args:
        groups: With the options that the loop begins with; None where nobody will ask for them.

    Attributes:
        reached: The latest iteration that the loop has gone through; -1 before the first.
    """

    def __init__(self, groups: Sequence[Group] | None = None) -> None:
        self.reached = -1
        self._changes: deque[tuple[int, Sequence[Group]]] = deque(maxlen=_CHANGES)
        self._now = groups  # as the loop has them by now

    def of(self, iteration: int, changed: Sequence[Group] | None = None) -> Sequence[Group] | None:
        """The options of an iteration, once the loop has gone through it.

        Args:
            iteration: That is being finished.
            changed: The groups, if the loop has changed their options since it was last asked for any.

        Returns:
            The groups; None where this worker does not know, since it was not there in that iteration.
        """
        self._now = changed or self._now
        if iteration > self.reached:
            self.reached = iteration
            if self._now is not None and (not self._changes or self._changes[-1][1] != self._now):
                self._changes.append((iteration, self._now))
            return self._now
        return next((groups for since, groups in reversed(self._changes) if since <= iteration), None)
