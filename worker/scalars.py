"""What a worker's iterations took, for users' charts: gathers it, and tells it once all of it is known.

It knows neither wire nor framework, and nothing of charts. Who is told must not hurt the training: after an
error it is told nothing more.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from idl.errors import InvalidRequestError
from idl.measures import waiting_share
from idl.plan import Assignment

log = logging.getLogger(__name__)

_UNMEASURED = 64  # iterations whose times may be awaited at once; older ones are left out


class Scalars(Protocol):
    """Is told what a worker's iterations took. If it has a `close`, that is called when the session ends."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of an iteration.

        Called by the thread that trains, between iterations; mostly in order, but where the job has to be
        rewound, iterations come again.

        Args:
            step: The iteration.
            values: By name; `IterationTimes.values` says which there are.
        """
        ...


@dataclass(slots=True)
class IterationTimes:
    """What an iteration took at this worker; times in seconds.

    Attributes:
        iteration: Which one.
        attempt: In which that was.
        total: Samples of the whole batch.
        count: Of them, this worker's.
        batch_processing_time: As reported to the manager; several parts of one batch are summed up.
        unmeasured: Parts whose time is not known yet.
        waiting_time: At the manager, and at the parameter server before this iteration.
        duration: From when the iteration before was reported and answered until this one was.
    """

    iteration: int
    attempt: int
    total: int
    count: int = 0
    batch_processing_time: float = 0.0
    unmeasured: int = 0
    waiting_time: float = 0.0
    duration: float = 0.0

    def goes_on(self, following: Assignment) -> bool:
        """Whether that is another part of this iteration."""
        return (following.iteration, following.attempt) == (self.iteration, self.attempt)

    def values(self) -> dict[str, float]:
        """By name, what users see; a worker without samples has no speed.

        `evenpace/batch_size` is in samples; `evenpace/batch_processing_time` and `evenpace/iteration_time` in
        seconds; `evenpace/waiting_share` is as `idl.measures` has it; `evenpace/speed` is this worker's, in
        samples per second of processing, and `evenpace/throughput` that of all workers together, in samples
        of the whole batch per second.
        """
        values = {
            "evenpace/batch_size": float(self.count),
            "evenpace/batch_processing_time": self.batch_processing_time,
            "evenpace/iteration_time": self.duration,
            "evenpace/waiting_share": float(waiting_share(self.waiting_time, self.batch_processing_time)),
        }
        if self.duration > 0:
            values["evenpace/throughput"] = self.total / self.duration
        if self.count and self.batch_processing_time > 0:
            values["evenpace/speed"] = self.count / self.batch_processing_time
        return {name: value for name, value in values.items() if math.isfinite(value)}


class Recorder:
    """Follows one session's iterations, and tells those who want to know.

    All but what `measured` gives is for the thread that trains.

    Args:
        log_fields: Gives what lines of log say beside their message.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        log_fields: Callable[[], Mapping[str, object]] = dict,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._log_fields = log_fields
        self._clock = clock
        self._told: list[tuple[Scalars, int]] = []
        self._current: IterationTimes | None = None
        self._since = clock()
        self._waited = 0.0
        self._done: deque[IterationTimes] = deque(maxlen=_UNMEASURED)
        self._lock = threading.Lock()  # over the times that another thread brings

    def tell(self, scalars: Scalars, every: int) -> None:
        """Tell somebody from now on, of the iterations that `every` divides.

        Raises:
            InvalidRequestError: `every` is less than 1.
        """
        if type(every) is not int or every < 1:
            raise InvalidRequestError(f"every {every!r}: must be a whole number from 1")
        self._told.append((scalars, every))

    def begin(self) -> None:
        """The next iteration begins now, and whatever was known of it before is void."""
        self._since = self._clock()
        self._waited = 0.0
        self._current = None

    def measured(self, done: Assignment, seconds: float | Callable[[], float]) -> Callable[[], float]:
        """A part of an iteration is done.

        Args:
            done: Which.
            seconds: Its batch processing time, or what gives it, once.

        Returns:
            What gives it, to be asked once at most, by any thread.
        """
        measure = seconds if callable(seconds) else lambda: seconds
        if not self._told:
            return measure
        times = self._current
        if times is None or not times.goes_on(done):
            times = self._current = IterationTimes(done.iteration, done.attempt, done.total)
        times.count += done.count
        if not callable(seconds):  # it is known even if the manager is away, and nobody asks
            with self._lock:
                times.batch_processing_time += seconds
            return measure
        with self._lock:
            times.unmeasured += 1

        def asked() -> float:
            measured = measure()
            with self._lock:
                times.batch_processing_time += measured
                times.unmeasured -= 1
            return measured

        return asked

    def waited(self, seconds: float) -> None:
        """This worker has waited for others."""
        self._waited += seconds

    def finished(self, following: Assignment | None) -> None:
        """A part is finished, and it is known what follows: maybe another part of the same iteration."""
        times = self._current
        if times is not None and following is not None and times.goes_on(following):
            return
        since, waited = self._since, self._waited
        self.begin()
        if times is None:
            return  # nobody is told
        times.duration, times.waiting_time = self._since - since, waited
        self._done.append(times)
        self._tell_known()

    def close(self) -> None:
        """The session ends: tell what has become known, and let those who were told close what they write."""
        self._tell_known()
        for scalars, _ in list(self._told):
            close = getattr(scalars, "close", None)
            if close is not None:
                self._guarded(scalars, close)
        self._told.clear()

    def _tell_known(self) -> None:
        with self._lock:
            known = [times for times in self._done if not times.unmeasured]
        for times in known:
            self._done.remove(times)
            for scalars, every in list(self._told):
                if times.iteration % every == 0:
                    self._guarded(scalars, partial(scalars.scalars, times.iteration, times.values()))

    def _guarded(self, scalars: Scalars, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:  # whatever a user's own code raises, the training goes on
            log.exception("%r raised an error; it is told nothing more", scalars, extra=self._log_fields())
            self._told = [entry for entry in self._told if entry[0] is not scalars]
