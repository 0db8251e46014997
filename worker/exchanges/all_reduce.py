"""The exchange among the workers themselves, by means of their framework's collective operations.

This module knows no framework: adapters reduce the gradients, and note here that they have weighted them.
"""

from collections.abc import Sequence
from typing import Any

from idl.errors import EvenpaceError, InvalidRequestError, RewoundError
from idl.exchange import FIXED_GROUP
from idl.layout import Group
from idl.plan import Assignment
from worker.exchanges.base import Exchange
from worker.job_recovery import Manager
from worker.messages import Joined


class AllReduce:
    """One worker's part in an all-reduce of gradients, in which each sample is to be weighted once, by 1 / X.

    Attributes:
        weighted_samples: Samples of the current iteration whose weight is in the gradient.
    """

    kind = FIXED_GROUP
    loader_finishes = True
    digest = None
    reconnects = 0

    def __init__(self) -> None:
        self.weighted_samples = 0
        self._weighted_by: str | None = None  # the function that weighted the current iteration's gradient
        self._has_weighted = False

    @classmethod
    def of(cls, exchange: Exchange, otherwise: str) -> "AllReduce":
        """Return a session's exchange, if it is an all-reduce.

        Args:
            exchange: The exchange.
            otherwise: The error's text.

        Raises:
            InvalidRequestError: It is another one.
        """
        if not isinstance(exchange, cls):
            raise InvalidRequestError(otherwise)
        return exchange

    def note_weighting(self, by: str, samples: int) -> bool:
        """Note that `samples` of this worker's samples in the iteration have their weight in the gradient.

        Args:
            by: The function that weights them, as the user writes it; the same throughout an iteration.
            samples: The number of samples, which is a part of the batch where it is taken in pieces.

        Returns:
            Whether this is the first call for this worker.

        Raises:
            InvalidRequestError: Another function has weighted samples of the iteration.
        """
        if self._weighted_by not in (None, by):
            raise InvalidRequestError(f"the gradient is weighted twice: by {self._weighted_by}, and by {by}")
        self._weighted_by = by
        self.weighted_samples += samples
        first, self._has_weighted = not self._has_weighted, True
        return first

    def joined(self, joined: Joined, identity: Any) -> None:
        """Check that the workers wait for each other.

        Raises:
            InvalidRequestError: They do not.
        """
        mode = joined.synchronisation.mode
        if mode != "bsp":
            raise InvalidRequestError(f"the job's mode is {mode}, which needs a parameter server")

    def open(self, assignment: Assignment, first: int) -> None:
        """Do nothing: the framework has given all workers the same parameters."""

    def contribute(self, done: Assignment, groups: Sequence[Group] | None, lr_scale: float) -> None:
        """Check that the gradient, which was reduced by now, was weighted.

        Raises:
            InvalidRequestError: It was not.
        """
        if self._weighted_by is None:
            raise InvalidRequestError(
                f"iteration {done.iteration} was finished, but its gradient was not weighted: call "
                f"balance(model, loader) once for a model in DistributedDataParallel, or scale each loss by "
                f"weighted(loss) before its backward pass"
            )
        self._weighted_by, self.weighted_samples = None, 0

    def take(self, assignment: Assignment) -> None:
        """Do nothing: each worker has made the step itself."""

    def settle(self, done: Assignment) -> None:
        """Do nothing: what was reduced is with all workers."""

    def forfeit(self, lost: Sequence[Any]) -> None:
        """Do nothing: nobody leaves such a job while it goes on."""

    def fence(self, attempt: int) -> None:
        """Do nothing: the job ends with the attempt."""

    def recover(self, manager: Manager, error: RewoundError, first: int | None) -> Assignment | None:
        """Raise an error, since workers that keep the parameters themselves cannot go back.

        Raises:
            InvalidRequestError: Always.
        """
        raise InvalidRequestError(
            f"the manager has lost this job's last iterations ({error}), and its workers keep the "
            f"parameters themselves: restart the job from its checkpoint"
        ) from error

    def abandon(self, error: EvenpaceError) -> None:
        """Do nothing: a collective operation ends by its framework's own time-out."""

    def close(self) -> None:
        """Do nothing: the process group is the script's."""
