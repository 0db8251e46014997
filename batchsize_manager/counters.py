"""Counts of what a job, the policies and the fits have done, for metrics; see `rpc.counters`."""

from idl.records import IterationRecord
from rpc.counters import Histogram


class JobTally:
    """What a job has done since this manager has had it.

    Attributes:
        durations: Of iterations, in seconds.
        samples: Of complete iterations.
        processing: Seconds that workers have taken for their batches, summed over them.
        waiting: Seconds that they have waited for each other, likewise.
        pieces: Parts of iterations that were given to another worker.
        gone: Members that left or were taken out.
        left: Of them, those that said goodbye.
        suspended: How often a member was silent and others did its part.
    """

    def __init__(self) -> None:
        self.durations = Histogram()
        self.samples = self.pieces = 0
        self.gone = self.left = self.suspended = 0
        self.processing = self.waiting = 0.0

    def complete(self, record: IterationRecord) -> None:
        """An iteration is complete."""
        self.durations.add(record.duration)
        self.samples += record.total
        self.processing += float(record.batch_processing_times.sum())
        self.waiting += float(record.waiting_times.sum())


class LearningTally:
    """What the policies and the fits of a manager have done.

    Attributes:
        splits: Seconds that policies took to split a batch.
        observations: Seconds that they took to take in what an iteration showed.
        fits: Seconds that fits took that came to something, the wait for those before them left out.
        failed_fits: Fits that came to nothing.
    """

    def __init__(self) -> None:
        self.splits, self.observations, self.fits = Histogram(), Histogram(), Histogram()
        self.failed_fits = 0
