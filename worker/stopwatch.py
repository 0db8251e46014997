"""The stopwatch that measures the batch processing time, without the time spent waiting for others."""

import time


class Stopwatch:
    """A stopwatch that sums the times between `start` and `stop`, in seconds."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._since: float | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the stopwatch runs."""
        return self._since is not None

    def start(self) -> None:
        """Start; nothing changes if the stopwatch runs already."""
        if self._since is None:
            self._since = time.perf_counter()

    def stop(self) -> None:
        """Stop; nothing changes if the stopwatch stands still already."""
        if self._since is not None:
            self._sum += time.perf_counter() - self._since
            self._since = None

    def exclude(self, seconds: float) -> None:
        """Subtract seconds in which the stopwatch should have stood still."""
        self._sum -= seconds

    def take(self) -> float:
        """Stop, return the sum, and reset it to 0."""
        self.stop()
        taken, self._sum = self._sum, 0.0
        return max(0.0, taken)
