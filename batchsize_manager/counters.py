"""Counts of a job's, its policies' and the fits' doings, for metrics (`rpc.counters`)."""

from idl.records import IterationRecord
from rpc.counters import Histogram


class JobTally:
    """Counts of what a job has done under this manager.

    Attributes:
        durations: Durations of iterations, in seconds.
        samples: Samples of complete iterations.
        processing: Batch processing times in seconds, summed over workers.
        waiting: Seconds that workers have waited for each other, summed over them.
        pieces: Parts of iterations that were given to another worker.
        gone: Members that left or were taken out.
        left: Members that left by themselves, a part of `gone`.
        suspended: Times that a member was silent and others did its part.
        group_changes: Seconds that changes of the members' group took (`GroupChange.until_step`).
    """

    def __init__(self) -> None:
        self.durations, self.group_changes = Histogram(), Histogram()
        self.samples = self.pieces = 0
        self.gone = self.left = self.suspended = 0
        self.processing = self.waiting = 0.0

    def complete(self, record: IterationRecord) -> None:
        """Count a complete iteration."""
        self.durations.add(record.duration)
        self.samples += record.total
        self.processing += float(record.batch_processing_times.sum())
        self.waiting += float(record.waiting_times.sum())


class LearningTally:
    """Counts of what the policies and the fits of a manager have done.

    Attributes:
        splits: Seconds that policies took to split a batch.
        observations: Seconds that policies took to observe an iteration.
        fits: Seconds that successful fits took, without the wait for earlier ones.
    """

    def __init__(self) -> None:
        self.splits, self.observations, self.fits = Histogram(), Histogram(), Histogram()
        self.failed_fits = 0  # fits that failed
