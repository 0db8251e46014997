"""The exchange among the workers themselves, by means of their framework's collective operations.

This module knows no framework: adapters reduce the gradients, and note here that they have weighted them.
"""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from idl.errors import EvenpaceError, InvalidRequestError, RewoundError, UnavailableError
from idl.exchange import FIXED_GROUP, FORMED_GROUP, Seat
from idl.layout import Group
from idl.plan import Assignment
from worker.exchanges.base import Exchange
from worker.membership import Membership
from worker.messages import Joined

log = logging.getLogger(__name__)

_KEEP_AGAIN_SECONDS = 1.0  # before another try to write the state down
_MOST_FAILURES = 10  # to form a group; each may be another member's death


@dataclass(frozen=True)
class GroupTimes:
    """Seconds that a worker spent on the parts of a change to another group."""

    connect: float  # connecting the members, and wrapping the model for them
    state: float  # sending or receiving the training's state, 0 where nobody lacks any
    compare: float  # comparing the members' states
    meet: float = 0.0  # waiting at the manager until all members were there


class Former(Protocol):
    """Forms process groups by means of a framework."""

    def serve(self, host: str) -> str:
        """Serve a store at which groups meet, for as long as this process lives; return its address.

        Args:
            host: This machine's address as others reach it.
        """
        ...

    def settle(self) -> str | None:
        """Wait for the device, and return why the iteration under way does not count; None where it does."""
        ...

    def begin_batch(self) -> None:
        """Note the state before a batch; where the one before did not count, go back to that before it."""
        ...

    def leave(self) -> None:
        """Let the other members have what they need of this one, before it goes to another group or leaves.

        Raises:
            InvalidRequestError: A part of the state is gone.
        """
        ...

    def cut(self, attempt: int) -> None:
        """End all waits for other members in groups of earlier attempts; called by any thread."""
        ...

    def form(self, attempt: int, seat: Seat, has_state: Callable[[], None]) -> GroupTimes:
        """Form the group of an attempt, in which all members have the same state then.

        Args:
            seat: This worker's place in the group.
            has_state: Called once this worker has the state with which the attempt begins; until then it has
                what it had before, also where the group cannot be formed.

        Returns:
            What its parts took, but for the meeting.

        Raises:
            UnavailableError: It cannot be formed.
            InvalidRequestError: This worker's training is another one than the other members'.
        """
        ...

    def keep(self) -> None:
        """Write down the state with which this worker has come into a group that is formed for it.

        Raises:
            OSError: It cannot be written.
        """
        ...


class AllReduce(Exchange):
    """One worker's part in an all-reduce of gradients, in which each sample is to be weighted once, by 1 / X.

    The ranks are those that something else has put into one process group; or, after `form_groups_by`, the
    job's members, in a group that the manager has them form for each attempt. All ranks begin with the same
    parameters, or take them as the group is formed, and each makes the steps itself. An iteration without all
    ranks comes to nothing.
    """

    loader_finishes = True

    def __init__(self) -> None:
        self.kind = FIXED_GROUP  # the name of the exchange, which is told to the manager by `join`
        self.weighted_samples = 0  # samples of the current iteration whose weight is in the gradient
        # What the last change to another group took; None before the first.
        self.group_times: GroupTimes | None = None
        # Called, by any thread, with the error after which the job cannot go on.
        self.on_abandoned: Callable[[EvenpaceError], None] | None = None
        self._weighted_by: str | None = None  # the function that weighted the current iteration's gradient
        self._has_weighted = False
        self._former: Former | None = None
        self._manager: Membership | None = None
        self._store = ""
        self._steps: int | None = None  # that the parameters have had; None before the first attempt
        self._place: tuple[int, int] | None = None  # epoch and end of the last step's batch
        self._formed: int | None = None  # the last attempt with whose state this worker has begun
        self._formed_by: str | None = None  # id of the manager's process that had its group formed
        self._has_kept = False  # whether it has written down the state that it has
        self._failures = 0  # to form a group, one after the other
        self._next: tuple[Assignment, Seat, float] | None = None  # a group to form; seconds of the meeting

    def form_groups_by(self, former: Former) -> None:
        """Let the manager have the members' group formed; to be called before `Session.join`."""
        self.kind, self._former = FORMED_GROUP, former

    def form_group(self) -> None:
        """Form the group of the present attempt, unless that was done; to be called before each batch.

        At the answer that begins an attempt it would be too early: until the next batch the loop may still
        end an epoch, or go through some that it has missed, and change options and schedules there. So it is
        here, too, that the state is written down where the manager has asked for that.

        Raises:
            RewoundError: The group could not be formed, as where a member has died meanwhile, or was formed
                for its state to be written down; another attempt has begun.
            UnavailableError: It could not be formed in several attempts.
            InvalidRequestError: The members' states differ.
        """
        if self._former is None or self._manager is None:
            return
        self._former.begin_batch()
        if self._next is None:
            return
        first, seat, met = self._next

        def has_state() -> None:
            # It may be the only one who has it from here on, as where the sender dies in the first iteration.
            self._formed, self._formed_by, self._steps = first.attempt, seat.manager, first.iteration
            self._place = None if first.batch_start is None else (first.epoch, first.batch_start)

        try:
            self.group_times = replace(self._former.form(first.attempt, seat, has_state), meet=met)
        except UnavailableError as error:
            self._failures += 1
            if self._failures == _MOST_FAILURES:
                raise
            raise RewoundError(str(error), self._manager.recover(first.attempt)) from error
        self._next, self._failures = None, 0
        if seat.keep:
            if seat.rank == 0:
                self._keep(self._former, self._manager)
            raise RewoundError("the state is written down", self._manager.recover(first.attempt))

    def _keep(self, former: Former, manager: Membership) -> None:
        """Write the state down; where that fails, the manager has a group formed for it again."""
        manager.is_between = True  # the others wait, however long it takes
        try:
            former.keep()
            self._has_kept = True
        except OSError as error:
            log.error("the state cannot be written down, which is tried again: %s", error)
            time.sleep(_KEEP_AGAIN_SECONDS)

    @classmethod
    def of(cls, exchange: Exchange, otherwise: str) -> "AllReduce":
        """Return a session's exchange, if it is an all-reduce (InvalidRequestError: it is another one)."""
        if not isinstance(exchange, cls):
            raise InvalidRequestError(otherwise)
        return exchange

    def note_weighting(self, by: str, samples: int) -> bool:
        """Note that `samples` of this worker's samples in the iteration have their weight in the gradient.

        Args:
            by: The function that weights them, as the user writes it; the same throughout an iteration.
            samples: The number of samples, which is a part of the batch where it is taken in pieces.

        Returns:
            Whether it is to be checked now that the ranks are the job's workers: in this worker's first call,
            unless the manager has formed the group.

        Raises:
            InvalidRequestError: Another function has weighted samples of the iteration.
        """
        if self._weighted_by not in (None, by):
            raise InvalidRequestError(f"the gradient is weighted twice: by {self._weighted_by}, and by {by}")
        self._weighted_by = by
        self.weighted_samples += samples
        first, self._has_weighted = not self._has_weighted, True
        return first and self.kind == FIXED_GROUP

    @property
    def is_weighted(self) -> bool:
        """True if a gradient of the current iteration was weighted."""
        return self._weighted_by is not None

    def joined(self, joined: Joined, identity: Any, host: str) -> None:
        """Check that the workers wait for each other (InvalidRequestError: they do not)."""
        mode = joined.synchronisation.mode
        if mode != "bsp":
            raise InvalidRequestError(f"the job's mode is {mode}, which needs a parameter server")
        if self._former is not None:
            self._store = self._former.serve(host)

    def contribute(self, done: Assignment, groups: Sequence[Group] | None, lr_scale: float) -> None:
        """Check that the gradient, which was reduced by now, was weighted.

        Raises:
            InvalidRequestError: It was not.
            RewoundError: It could not be reduced, and another attempt has begun.
        """
        weighted_by, self._weighted_by, self.weighted_samples = self._weighted_by, None, 0
        if self._former is not None and (why := self._former.settle()) is not None:
            assert self._manager is not None
            assert self._formed is not None
            raise RewoundError(
                f"iteration {done.iteration} does not count: {why}", self._manager.recover(self._formed)
            )
        if weighted_by is None:
            raise InvalidRequestError(
                f"iteration {done.iteration} was finished, but its gradient was not weighted: call "
                f"balance(model, loader) once for a model in DistributedDataParallel, or scale each loss by "
                f"weighted(loss) before its backward pass"
            )
        self._steps = done.iteration + 1
        self._place = None if done.batch_start is None else (done.epoch, done.batch_start + done.total)

    def settle(self, done: Assignment) -> None:
        """Let the other members have what they need of this worker, which leaves them.

        Raises:
            InvalidRequestError: A part of the state is gone.
        """
        if self._former is not None:
            self._former.leave()

    def fence(self, attempt: int) -> None:
        """End waits in groups of earlier attempts that the manager has formed; called by any thread.

        In a fixed group nothing can be done, and the job ends with the attempt.
        """
        if self._former is not None:
            self._former.cut(attempt)

    def recover(self, manager: Membership, error: RewoundError, first: int) -> Assignment | None:
        """Meet the other members in another attempt, whose group is formed before the next batch.

        Raises:
            InvalidRequestError: The group is fixed, so that its workers cannot go back; or a part of the
                state is gone.
        """
        if self._former is None:
            raise InvalidRequestError(
                f"the manager has lost this job's last iterations ({error}), and its workers keep the "
                f"parameters themselves: restart the job from its checkpoint"
            ) from error
        self._manager = manager
        self._former.leave()
        if self._steps is None:
            self._steps = first
        began = time.perf_counter()
        while True:
            try:
                assignment, seat = manager.meet(
                    error.attempt,
                    self._steps,
                    self._place,
                    self._store,
                    self._formed,
                    self._formed_by,
                    kept=self._has_kept,
                )
            except RewoundError as again:
                error = again
                continue
            self._next, self._has_kept = None, False
            if assignment is not None and seat is not None:
                self._next = assignment, seat, time.perf_counter() - began
            return assignment

    def abandon(self, error: EvenpaceError) -> None:
        """End all waits in groups that the manager has formed, and tell whoever has asked for it.

        In a fixed group, a collective operation ends by its framework's own time-out.
        """
        if self._former is not None:
            self._former.cut(sys.maxsize)  # no attempt follows for this worker
        if self.on_abandoned is not None:
            self.on_abandoned(error)
