"""What a worker does by itself while the manager is away: its share of the last plan, of the batches to come.

All workers scale the same plan, so their slices tile each batch. No wire, no threads, no clock.
"""

import logging
from collections.abc import Callable, Mapping

from batchsize_manager.plan import Assignment, JobSpec

log = logging.getLogger(__name__)


def carried_on(spec: JobSpec, share: Assignment, iteration: int) -> Assignment | None:
    """This worker's slice of a later iteration's batch, as the last plan would split it.

    Args:
        spec: What is trained on.
        share: This worker's slice in the last plan that it was given.
        iteration: The later one.

    Returns:
        None where the iteration does not tell its batch, since batches of this job have had other sizes.
    """
    epoch, start, total = spec.batch(share.iteration)
    batch_start = start if share.batch_start is None else share.batch_start
    if (share.epoch, batch_start, share.total) != (epoch, start, total):
        return None
    offset = share.start - batch_start
    epoch, start, total = spec.batch(iteration)
    begin = offset * total // share.total
    end = (offset + share.count) * total // share.total
    return Assignment(iteration, epoch, start + begin, end - begin, total, share.attempt, start)


class Alone:
    """How far a worker may go by itself.

    Args:
        limit: Iterations in a row.
        log_fields: Gives what lines of log say beside their message.

    Attributes:
        began: Whether it goes on by itself now.
        total: Iterations that were done alone.
        allowed: Whether it may.
    """

    def __init__(self, limit: int, log_fields: Callable[[], Mapping[str, object]] = dict) -> None:
        self.limit = limit
        self._log_fields = log_fields
        self.began = False
        self.total = 0
        self.allowed = True
        self._share: Assignment | None = None  # of the last plan
        self._last: Assignment | None = None
        self._done = 0

    def given(self, assignment: Assignment) -> Assignment:
        """Note what the manager gave; a further slice of the same iteration is no share of a plan."""
        last = self._last
        if last is None or (last.attempt, last.iteration) != (assignment.attempt, assignment.iteration):
            self._share = assignment
        self._last = assignment
        return assignment

    def begin(self, reason: Exception) -> None:
        """Go on alone."""
        self.began = True
        self._done = 0
        log.warning(
            "the manager is away: carrying on with the last plan (%s)", reason, extra=self._log_fields()
        )

    def can_go_on(self, spec: JobSpec) -> bool:
        """Whether there is a next iteration that may be done alone."""
        return self.allowed and self._done < self.limit and self._next(spec) is not None

    def go_on(self, spec: JobSpec) -> Assignment:
        """The next iteration's slice."""
        following = self._next(spec)
        assert following is not None
        self._done += 1
        self.total += 1
        self._last = following
        return following

    def wait(self, seconds: float) -> None:
        """There is nothing more that may be done alone: the manager is awaited for so long."""
        log.warning(
            "carried on for %d iterations; now waiting up to %g s for the manager",
            self._done,
            seconds,
            extra=self._log_fields(),
        )

    def end(self) -> None:
        """The manager is back, or there is no way to go on."""
        if self.began:
            log.warning(
                "carried on for %d iterations while the manager was away",
                self._done,
                extra=self._log_fields(),
            )
        self.began = False

    def _next(self, spec: JobSpec) -> Assignment | None:
        if self._share is None or self._last is None:
            return None
        return carried_on(spec, self._share, self._last.iteration + 1)
