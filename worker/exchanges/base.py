"""The base of an exchange: how the gradients of a job's workers meet, and each gets the result.

A session calls it, and knows no more of parameters and gradients. This module knows no framework.
"""

# ruff: noqa: B027 - what an exchange need not do, it does not

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from idl.errors import EvenpaceError, RewoundError
from idl.layout import Group
from idl.plan import Assignment
from worker.membership import Membership
from worker.messages import Joined


class Exchange(ABC):
    """One worker's part in an exchange.

    The thread that trains calls it, in this order: `joined`; `open` until that succeeds, and `take`; then in
    each iteration `contribute`, and when all have reported, `take` for the next assignment, or `settle`
    where there is none. `recover` may come at any time after `joined`. Calls of other threads are named.

    Attributes:
        loader_finishes: Whether an iteration is over when the loop asks for its next batch; otherwise it is
            when the script's optimiser has stepped, which calls `Session.finish_iteration`.
    """

    kind: str  # the exchange's name, one of `idl.exchange`, which `join` tells the manager
    loader_finishes: bool

    @property
    def digest(self) -> str | None:
        """A text by which workers agree on the services that they rely on; None where there are none."""
        return None

    @property
    def reconnects(self) -> int:
        """How often a connection was made again; may be read by any thread."""
        return 0

    @abstractmethod
    def joined(self, joined: Joined, identity: Any, host: str) -> None:
        """Take what the manager has answered to `join`.

        Args:
            joined: The answer.
            identity: This worker's `Identity` of common.thrift.
            host: This machine's address as other workers reach it.

        Raises:
            InvalidRequestError: The job is not one for this exchange.
        """

    def open(self, assignment: Assignment, first: int) -> None:
        """Agree with the other workers on the parameters to start from.

        Args:
            assignment: This worker's first assignment.
            first: The job's first iteration, before which nothing was trained.

        Raises:
            InvalidRequestError: The parameters are not known yet, or are others than the other workers'.
            RewoundError: The job is in another attempt; it is to be recovered, and this called again.
        """

    @abstractmethod
    def contribute(self, done: Assignment, groups: Sequence[Group] | None, lr_scale: float) -> None:
        """Contribute the gradient of an assignment, which may have no samples.

        Args:
            groups: The parameter groups, if their options have changed.
            lr_scale: Factor of the learning rates in this iteration.

        Raises:
            InvalidRequestError: The gradient is not complete, or is refused.
            RewoundError: The job is in another attempt.
        """

    def take(self, assignment: Assignment) -> None:
        """Let the model have the parameters that an assignment is computed with.

        Raises:
            RewoundError: The job is in another attempt.
        """

    @abstractmethod
    def settle(self, done: Assignment) -> None:
        """See to it that what was contributed counts, as this worker leaves after an assignment."""

    def forfeit(self, lost: Sequence[Any]) -> None:
        """Note slices that nobody will contribute any more; may be called by any thread.

        Args:
            lost: The slices, as `Lost` of batchsize_manager.thrift.
        """

    @abstractmethod
    def fence(self, attempt: int) -> None:
        """End waits of earlier attempts than this one with RewoundError; called by any thread."""

    @abstractmethod
    def recover(self, manager: Membership, error: RewoundError, first: int) -> Assignment | None:
        """Enter another attempt together with the other workers, and take its parameters.

        Args:
            manager: This worker's calls to the manager.
            error: The error by which the need of recovery was noticed.
            first: The job's first iteration, before which nothing was trained.

        Returns:
            The first assignment of the attempt; None if this worker is released.

        Raises:
            InvalidRequestError: The job cannot go on.
        """

    @abstractmethod
    def abandon(self, error: EvenpaceError) -> None:
        """Make calls in progress and all later ones fail with an error; may be called by any thread."""

    def close(self) -> None:
        """Close the connections."""
