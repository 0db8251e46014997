"""Times of a worker's iterations, for users' charts: collected, and passed on once all of them are known.

This module knows neither wire nor framework, and nothing of charts. A writer of charts must not harm the
training: after an error it is not called again.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from idl.errors import InvalidRequestError
from idl.measures import goodput, waiting_share
from idl.noise import statistical_efficiency
from idl.plan import Assignment
from rpc.field_log import FieldLog

log = FieldLog(__name__)

_UNMEASURED = 64  # iterations whose times may be outstanding at once; older ones are dropped


class Scalars(Protocol):
    """A writer of an iteration's values. If it has a method `close`, that is called when the session ends."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of an iteration.

        Called by the thread that trains, between iterations; mostly in order, but where the job is rewound,
        iterations are repeated.

        Args:
            step: The iteration.
            values: The values by name, as `IterationTimes.values` returns them.
        """
        ...


@dataclass(slots=True)
class IterationTimes:
    """The times of one iteration at this worker, in seconds."""

    part: Assignment  # this worker's first part of it
    count: int = 0  # samples of all of this worker's parts of it
    batch_processing_time: float = 0.0  # seconds as reported to the manager, summed over the parts
    unmeasured: int = 0  # parts whose time is not known yet
    # Seconds of waiting at the manager, and at the parameter server before this iteration.
    waiting_time: float = 0.0
    # Seconds from the answer to the report of the iteration before to the answer to this one's.
    duration: float = 0.0
    # The job's gradient noise scale as it was known by then, in samples; None if it was not.
    noise_scale: float | None = None
    # Samples of the script's batches, whose statistical efficiency is 1; None if not known.
    first_size: int | None = None

    def values(self) -> dict[str, float]:
        """Return the values that users see, by name; a worker without samples has no speed.

        `evenpace/batch_size` is in samples; `evenpace/batch_processing_time` and `evenpace/iteration_time` in
        seconds; `evenpace/waiting_share` is as `idl.measures` has it; `evenpace/speed` is this worker's, in
        samples per second of processing, and `evenpace/throughput` that of all workers together, in samples
        of the whole batch per second. `evenpace/noise_scale` is the job's, in samples, once it is known well;
        so are, as `idl.noise` and `idl.measures` have them, `evenpace/efficiency`, relative to batches of the
        script's size, and `evenpace/goodput`, the throughput times that.
        """
        values = {
            "evenpace/batch_size": float(self.count),
            "evenpace/batch_processing_time": self.batch_processing_time,
            "evenpace/iteration_time": self.duration,
            "evenpace/waiting_share": float(waiting_share(self.waiting_time, self.batch_processing_time)),
        }
        if self.duration > 0:
            values["evenpace/throughput"] = self.part.total / self.duration
        if self.count and self.batch_processing_time > 0:
            values["evenpace/speed"] = self.count / self.batch_processing_time
        if self.noise_scale is not None:
            values["evenpace/noise_scale"] = self.noise_scale
            if self.first_size is not None:
                total = self.part.total
                efficiency = float(statistical_efficiency(self.noise_scale, total, self.first_size))
                values["evenpace/efficiency"] = efficiency
                values["evenpace/goodput"] = float(goodput(total, self.duration, efficiency))
        return {name: value for name, value in values.items() if math.isfinite(value)}


class Recorder:
    """A recorder of one session's iteration times, which passes them on to writers.

    The function that `measure_part` returns may be called by any thread; all else is for the thread that
    trains.

    Args:
        log: A logger whose fields all log lines get.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        log: FieldLog = log,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._log = log.of(__name__)
        self._clock = clock
        self._writers: list[tuple[Scalars, int]] = []
        self._current: IterationTimes | None = None
        self._since = clock()
        self._waited = 0.0
        self._done: deque[IterationTimes] = deque(maxlen=_UNMEASURED)
        self._lock = threading.Lock()  # guards the times that another thread measures

    def add_writer(self, scalars: Scalars, every: int) -> None:
        """Add a writer, which gets the values of the iterations that `every` divides.

        Raises:
            InvalidRequestError: `every` is less than 1.
        """
        if type(every) is not int or every < 1:
            raise InvalidRequestError(f"every {every!r}: must be a whole number from 1")
        self._writers.append((scalars, every))

    def begin(self) -> None:
        """Begin the next iteration now, and drop all times recorded for it before."""
        self._since = self._clock()
        self._waited = 0.0
        self._current = None

    def measure_part(self, done: Assignment, seconds: float | Callable[[], float]) -> Callable[[], float]:
        """Record the batch processing time of a part of an iteration.

        Args:
            done: The part.
            seconds: Its batch processing time, or a function that returns it, to be called once.

        Returns:
            A function that returns the time, to be called once at most, by any thread.
        """
        measure = seconds if callable(seconds) else lambda: seconds
        if not self._writers:
            return measure
        times = self._current
        if times is None or not done.continues(times.part):
            times = self._current = IterationTimes(done)
        times.count += done.count
        if not callable(seconds):  # count it now: the function may never be called
            with self._lock:
                times.batch_processing_time += seconds
            return measure
        with self._lock:
            times.unmeasured += 1

        def measure_and_add() -> float:
            measured = measure()
            with self._lock:
                times.batch_processing_time += measured
                times.unmeasured -= 1
            return measured

        return measure_and_add

    def add_waiting(self, seconds: float) -> None:
        """Add seconds in which this worker has waited for others."""
        self._waited += seconds

    def finish_part(
        self, following: Assignment | None, noise_scale: float | None = None, first_size: int | None = None
    ) -> None:
        """Finish a part, before `following`, which may be another part of the same iteration.

        Args:
            following: This worker's next part; None where there is none.
            noise_scale: The job's gradient noise scale, in samples; None where it is not known well.
            first_size: Samples of the script's batches; None where that is not known.
        """
        times = self._current
        if times is not None and following is not None and following.continues(times.part):
            return
        since, waited = self._since, self._waited
        self.begin()
        if times is None:
            return  # there is no writer
        times.duration, times.waiting_time = self._since - since, waited
        times.noise_scale, times.first_size = noise_scale, first_size
        self._done.append(times)
        self._write_known()

    def close(self) -> None:
        """Write the iterations that are known by now, and close the writers."""
        self._write_known()
        for scalars, _ in list(self._writers):
            close = getattr(scalars, "close", None)
            if close is not None:
                self._guarded(scalars, close)
        self._writers.clear()

    def _write_known(self) -> None:
        with self._lock:
            known = [times for times in self._done if not times.unmeasured]
        for times in known:
            self._done.remove(times)
            for scalars, every in list(self._writers):
                if times.part.iteration % every == 0:
                    self._guarded(scalars, partial(scalars.scalars, times.part.iteration, times.values()))

    def _guarded(self, scalars: Scalars, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:  # noqa: BLE001 - whatever a user's own code raises, the training goes on
            self._log.exception("%r raised an error; it is not used again", scalars)
            self._writers = [entry for entry in self._writers if entry[0] is not scalars]
