"""What one worker can take: samples, and micro-batches at once; learned where memory is short."""

from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from rpc.field_log import FieldLog

log = FieldLog(__name__)


class Limits:
    """The most that a worker can take, which starts as its user says and only sinks.

    Args:
        bounds: What the user allows.
        log: A logger whose fields all log lines get.
    """

    def __init__(self, bounds: Bounds, log: FieldLog = log) -> None:
        self.maximum = bounds.maximum  # most samples in an iteration
        # Most micro-batches that are to be computed at once, for all that is known of the memory.
        self.most_at_once = bounds.at_once
        self.at_once = 1  # micro-batches of the current iteration that are computed at once
        self._log = log.of(__name__)
        self._learned: int | None = None  # a maximum, since the last report

    def lower_maximum(self, samples: int) -> None:
        """Note that this worker can take `samples` at most, which the next report tells the manager.

        Raises:
            InvalidRequestError: `samples` is less than 1.
        """
        if samples < 1:
            raise InvalidRequestError("not even one sample fits into this worker's memory")
        self._learned = min(samples, self._learned or samples)
        self.maximum = min(samples, self.maximum)

    def take_learned(self) -> int | None:
        """Return a maximum of samples that was learned since the last call; None where none was."""
        learned, self._learned = self._learned, None
        return learned

    def begin(self, planned: int) -> int:
        """Return how many micro-batches of an iteration are computed at once, where so many are planned."""
        self.at_once = min(planned, self.most_at_once)
        return self.at_once

    def lower_at_once(self, micro_batches: int) -> None:
        """Note how many micro-batches fit into memory at once, for the reports of later iterations."""
        self.most_at_once = min(micro_batches, self.most_at_once)
        self._log.warning(
            "at most %d micro-batches are computed at once from now on, since memory ran out",
            self.most_at_once,
        )
