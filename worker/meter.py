"""The measurements of one worker's iterations: batch processing times, waiting, usage, and time by phase.

All of them are told here, once each, and go on to the report, to metrics and traces, and to users' charts.
This module knows no wire and no framework.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from idl.plan import Assignment
from rpc.field_log import FieldLog
from worker.counters import SessionTally
from worker.iteration_times import Recorder, Scalars
from worker.resources.monitors import ResourceMonitor
from worker.stopwatch import Stopwatch

log = FieldLog(__name__)


class BackwardTimes(NamedTuple):
    """The times of a backward pass and its transfers in seconds, as in `Report`; None where not known."""

    backward_time: float | None = None
    first_bucket_time: float | None = None
    other_buckets_time: float | None = None
    last_bucket_time: float | None = None


@dataclass(frozen=True)
class Measured:
    """The measurements of a part of an iteration, for its report.

    Attributes:
        communicated: Seconds of transfers of gradients and parameters since then, without that waiting; None
            where no transfer was timed.
    """

    # Returns the batch processing time in seconds; may be called once, by any thread.
    seconds: Callable[[], float]
    waited: float  # seconds for which the parameter server held parameters back since the last report
    communicated: float | None
    backward: BackwardTimes  # times of the backward pass, and of transfers that overlap with it
    cpu: float  # share of the CPU capacity that others take, 0 to 1
    memory: float  # occupied share of the memory, 0 to 1; the accelerator's where that is larger


class Meter:
    """Measures one worker's iterations.

    Args:
        log: A logger whose fields all log lines get.

    Attributes:
        memory_usage: Returns the occupied share of the accelerator's memory, 0 to 1, at an iteration's end;
            None without one.
        take_backward: Returns the times of the last backward pass and of its buckets, once; None without such
            measurements.
    """

    def __init__(self, log: FieldLog = log) -> None:
        self.stopwatch = Stopwatch()  # measures the batch processing time; runs while this worker computes
        self.memory_usage: Callable[[], float] | None = None
        self.take_backward: Callable[[], BackwardTimes] | None = None
        self.tally = SessionTally()  # counters, for metrics and traces
        self._processing_time: Callable[[], Callable[[], float]] | None = None
        self._monitor = ResourceMonitor()
        self._recorder = Recorder(log)
        self._waited = 0.0  # since the last report
        self._transfers: dict[str, float] = {}  # likewise, seconds by phase
        self._samples = 0  # finished since `take_samples`

    def add_scalars(self, scalars: Scalars, every: int = 1) -> None:
        """Add a writer of iterations' times, for the iterations that `every` divides.

        Raises:
            InvalidRequestError: `every` is less than 1.
        """
        self._recorder.add_writer(scalars, every)

    def measure_by(
        self, processing_time: Callable[[], Callable[[], float]], stopwatch: Stopwatch | None = None
    ) -> None:
        """Measure the batch processing time otherwise than by the clock.

        Args:
            processing_time: Called once for each part of an iteration; returns a function that returns its
                batch processing time in seconds, and may be called later by another thread.
            stopwatch: Runs while this worker computes; None for the present one.
        """
        self._processing_time = processing_time
        self.stopwatch = stopwatch or self.stopwatch

    def take_samples(self) -> int:
        """Return the samples that this worker has gone through since the last call."""
        samples, self._samples = self._samples, 0
        return samples

    def begin_training(self) -> None:
        """Begin to measure, with the first iteration."""
        self.stopwatch.take()
        self._transfers.clear()
        self._monitor.resume()
        self._recorder.begin()

    @contextlib.contextmanager
    def pulling(self, assignment: Assignment) -> Iterator[Callable[[float], None]]:
        """Count a `with` block as the pull of an assignment's parameters.

        Yields:
            A function that takes the seconds of it for which this worker has waited for others, which are no
            processing time.
        """
        waited = 0.0

        def note(seconds: float) -> None:
            nonlocal waited
            waited = seconds

        self.stopwatch.start()
        with self._transferring("pull", assignment):
            yield note
        self.leave_out(waited)
        self.stopwatch.stop()

    def leave_out(self, waited: float) -> None:
        """Count seconds of transfers as a wait for other workers, which is no processing time."""
        self.stopwatch.exclude(waited)
        self._add_transfer("pull", -waited)
        self._waited += waited
        self._recorder.add_waiting(waited)
        self.tally.waiting += waited

    @contextlib.contextmanager
    def pushing(self, done: Assignment) -> Iterator[None]:
        """Count a `with` block as the push of a part's gradient."""
        with self._transferring("push", done):
            yield

    @contextlib.contextmanager
    def reporting(self, done: Assignment) -> Iterator[None]:
        """Count a `with` block as the report of a part of an iteration, and as waiting for the others."""
        with self.tally.phase("report", done):
            begun = time.perf_counter()
            yield
            self._recorder.add_waiting(time.perf_counter() - begun)

    def finish(
        self,
        done: Assignment,
        following: Assignment | None,
        noise_scale: float | None,
        first_size: int | None,
    ) -> None:
        """Finish a part of an iteration, which was reported.

        Args:
            done: The part.
            following: This worker's next part, which may be of the same iteration; None where there is none.
            noise_scale: The job's gradient noise scale, in samples; None where it is not known well.
            first_size: Samples of the script's batches; None where that is not known.
        """
        self._recorder.finish_part(following, noise_scale, first_size)
        if following is not None and following.continues(done):
            self.tally.pieces += 1
        else:
            self.tally.iterations += 1

    def resume(self) -> None:
        """Go on after an iteration."""
        self._monitor.resume()

    def restart(self) -> None:
        """Drop what was measured since the last iteration, as the job was recovered since."""
        self.stopwatch.take()
        self._transfers.clear()
        self._recorder.begin()
        self.tally.rewinds += 1

    def close(self) -> None:
        """Write what is known to the users' charts, and close them."""
        self._recorder.close()
        self._monitor.close()

    def take(self, done: Assignment) -> Measured:
        """Return what was measured of a part of an iteration, to be reported, and stop the stopwatch."""
        self._samples += done.count
        self.tally.samples += done.count
        usage = self._monitor.sample()
        measured = self.stopwatch.take()
        taken = self._recorder.measure_part(
            done, self._processing_time() if self._processing_time else measured
        )
        memory = max(usage.memory, self.memory_usage()) if self.memory_usage else usage.memory
        waited, self._waited = self._waited, 0.0
        transfers, self._transfers = self._transfers, {}
        backward = self.take_backward() if self.take_backward else BackwardTimes()
        if backward.last_bucket_time is not None:  # what follows the last bucket, before the next pass begins
            pulled = transfers.get("pull", 0.0)
            backward = backward._replace(last_bucket_time=backward.last_bucket_time + pulled)
        return Measured(
            lambda: self.tally.count_processing(taken(), done.count),
            waited,
            sum(transfers.values()) if transfers else None,
            backward,
            usage.cpu,
            memory,
        )

    @contextlib.contextmanager
    def _transferring(self, phase: str, part: Assignment) -> Iterator[None]:
        begun = time.perf_counter()
        with self.tally.phase(phase, part):
            yield
        self._add_transfer(phase, time.perf_counter() - begun)

    def _add_transfer(self, phase: str, seconds: float) -> None:
        self._transfers[phase] = max(0.0, self._transfers.get(phase, 0.0) + seconds)
