"""The stopwatch of a GPU, which works asynchronously: it records events on the stream."""

from collections.abc import Callable

import torch

from worker.session import Session
from worker.stopwatch import Stopwatch


class EventStopwatch(Stopwatch):
    """A stopwatch that records an event on the current stream at each `start` and `stop`, without waiting.

    Args:
        device: The GPU.
        running: The stopwatch that it replaces; it continues that one's time.
    """

    def __init__(self, device: torch.device, running: Stopwatch) -> None:
        super().__init__()
        self._sum, self._since = running._sum, running._since
        self._device = device
        self._begun: torch.cuda.Event | None = None
        self._intervals: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._taken: Callable[[], float] = float

    def start(self) -> None:
        """Start; nothing changes if the stopwatch runs already."""
        if self._since is None:
            self._begun = self._event()
        super().start()

    def stop(self) -> None:
        """Stop; nothing changes if the stopwatch stands still already."""
        if self._begun is not None:
            self._intervals.append((self._begun, self._event()))
            self._begun = None
        super().stop()

    def take(self) -> float:
        """Stop, return the sum of this thread's times, and reset it; `taken` returns the GPU's."""
        seconds = super().take()
        intervals, self._intervals = self._intervals, []
        self._taken = (lambda: _elapsed(intervals)) if intervals else (lambda: seconds)
        return seconds

    def taken(self) -> Callable[[], float]:
        """Return a function that waits for the GPU's seconds until the last `take`, in any thread."""
        return self._taken

    def _event(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def time_on(device: torch.device, session: Session) -> None:
    """Have a session measure by events if the device is a GPU; elsewhere it uses the clock."""
    meter = session.meter
    if device.type == "cuda" and not isinstance(meter.stopwatch, EventStopwatch):
        stopwatch = EventStopwatch(device, meter.stopwatch)
        meter.measure_by(stopwatch.taken, stopwatch)


def _elapsed(intervals: list[tuple[torch.cuda.Event, torch.cuda.Event]]) -> float:
    intervals[-1][1].synchronize()
    milliseconds: float = sum(begun.elapsed_time(ended) for begun, ended in intervals)
    return milliseconds / 1e3
