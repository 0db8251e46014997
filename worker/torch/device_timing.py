"""The stopwatch on a GPU, whose work is done later than it is asked for: events are recorded in its place."""

from collections.abc import Callable

import torch

from worker.session import Session
from worker.stopwatch import Stopwatch


class EventStopwatch(Stopwatch):
    """Records an event on the current stream at each `start` and `stop`; waits for none of them.

    Args:
        device: The GPU.
        running: What it takes the place of; until the next `start` it counts on as that did.
    """

    def __init__(self, device: torch.device, running: Stopwatch) -> None:
        super().__init__()
        self._sum, self._since = running._sum, running._since
        self._device = device
        self._begun: torch.cuda.Event | None = None
        self._intervals: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._taken: Callable[[], float] = float

    def start(self) -> None:
        """Run; nothing changes if it runs already."""
        if self._since is None:
            self._begun = self._event()
        super().start()

    def stop(self) -> None:
        """Stand still; nothing changes if it does already."""
        if self._begun is not None:
            self._intervals.append((self._begun, self._event()))
            self._begun = None
        super().stop()

    def take(self) -> float:
        """Stop, return the sum of the times in this thread, and begin anew; `taken` gives the GPU's."""
        seconds = super().take()
        intervals, self._intervals = self._intervals, []
        self._taken = (lambda: _elapsed(intervals)) if intervals else (lambda: seconds)
        return seconds

    def taken(self) -> Callable[[], float]:
        """Gives the seconds of the GPU until the last `take`; it waits for them, in whatever thread."""
        return self._taken

    def _event(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def time_on(device: torch.device, session: Session) -> None:
    """Let a session measure where the work is done: by events on a GPU, by the clock elsewhere."""
    if device.type == "cuda" and not isinstance(session.stopwatch, EventStopwatch):
        stopwatch = EventStopwatch(device, session.stopwatch)
        session.stopwatch = stopwatch
        session.processing_time = stopwatch.taken


def _elapsed(intervals: list[tuple[torch.cuda.Event, torch.cuda.Event]]) -> float:
    intervals[-1][1].synchronize()
    milliseconds: float = sum(begun.elapsed_time(ended) for begun, ended in intervals)
    return milliseconds / 1e3
