"""A gradient that is pushed bucket by bucket while it is still being computed; knows no framework.

What a script does to gradients after they were computed, such as clipping, would be lost: the first batches
show whether it does, and what was pushed is compared with the gradients at each step.
"""

import time
from collections.abc import Callable, Sequence
from math import inf

from idl.layout import Group
from idl.plan import Assignment
from worker.buckets import Bucket, NoteReady
from worker.exchanges.parameter_server import ParameterServer
from worker.flat_order import FlatOrder
from worker.session import Session

_TRIALS = 3  # batches in which nothing may have changed after the gradient was computed
_MOST_SECONDS = 10.0  # between two parts of a push: half the time after which a shard breaks it off


class EarlyPush:
    """Pushes the buckets of a gradient that are in the flat array, and gives the push up if they change.

    The last bucket is never pushed before the step: until then no shard has all of its part, and the push can
    be given up.

    Args:
        server: Its exchange.
        order: The order of the flat array.
        groups: Returns the parameter groups, if their options have changed since the last step.
        ready: As in `ParameterServer.begin_push`.
    """

    def __init__(
        self,
        session: Session,
        server: ParameterServer,
        order: FlatOrder,
        groups: Callable[[], Sequence[Group] | None],
        ready: NoteReady = Bucket,
    ) -> None:
        # The assignment whose gradient is being computed, or was last; None before, and after its step.
        self.part: Assignment | None = None
        self.is_stopped = False  # whether all gradients are pushed by the step from now on
        self._session = session
        self._server = server
        self._order = order
        self._groups = groups
        self._ready = ready
        self._copied = 0  # buckets
        self._options: Sequence[Group] | None = None  # as `groups` has returned them for `part`
        self._trials = 0
        self._advanced = 0.0  # when the last bucket was copied
        self._pause = 0.0  # the longest time from one to the next, or to the step, in seconds
        self._least_pause = inf  # the shortest such time of the trials

    @property
    def has_begun(self) -> bool:
        """Return whether the present assignment's gradient is being copied, or was."""
        return self.part is not None and self.part is self._session.assignment

    def begin(self) -> bool:
        """Begin with the present assignment; return whether its buckets are to be copied and pushed early."""
        now = self._session.assignment
        if self.is_stopped or now is None or not self._session.is_begun or not self._server.may_begin(now):
            return False
        self.part, self._copied, self._pause = now, 0, 0.0
        return True

    def advance(self, copied: int) -> None:
        """Note that the flat array has the gradients of the first buckets, at least one more than before.

        Args:
            copied: Their number, less than that of all.
        """
        assert self.part is not None
        is_first, self._copied = not self._copied, copied
        if is_first:
            self._options = self._groups()
        else:
            self._note_pause()
        self._advanced = time.monotonic()
        if self._trials >= _TRIALS:
            if is_first:
                scale = self._session.training.lr_scale
                self._server.begin_push(self.part, self._options, scale, self._ready)
            self._server.advance_push(self._order.ends[copied - 1])

    def finish(self, is_unchanged: Callable[[int], bool]) -> int:
        """Compare what was copied with the gradients of the step; to be called by each step.

        If one has changed since it was copied, the push is given up, and the iteration will be repeated.

        Args:
            is_unchanged: Returns whether a tensor's gradient, by its number, is what was copied.

        Returns:
            The number of buckets, from the first, whose gradients are in the flat array.
        """
        copied, self._copied, part, self.part = self._copied, 0, self.part, None
        if part is not self._session.assignment or not copied:
            return 0
        if self._groups() != self._options:
            self._stop("the optimiser's options change between the backward pass and the step")
            return 0
        if not all(is_unchanged(number) for bucket in self._order.buckets[:copied] for number in bucket):
            self._stop(
                "gradients change after the backward pass, as by clipping, a GradScaler or a second backward "
                "pass"
            )
            return 0
        self._note_pause()
        self._trials += 1
        if self._trials <= _TRIALS:
            self._least_pause = min(self._least_pause, self._pause)
            if self._trials == _TRIALS and self._least_pause > _MOST_SECONDS:
                self._stop(
                    f"the backward pass takes {self._least_pause:.0f} s from one bucket to the next, and no "
                    f"shard waits for so long"
                )
        return copied

    def _note_pause(self) -> None:
        self._pause = max(self._pause, time.monotonic() - self._advanced)

    def _stop(self, reason: str) -> None:
        """Have gradients pushed by the step from now on."""
        self.is_stopped = True
        self._session.log.of(__name__).info(
            "%s: gradients are pushed by optimizer.step(), not while the backward pass runs", reason
        )
        self._server.give_up_push(reason)
