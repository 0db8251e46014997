"""The stopwatch that measures the batch processing time, which leaves waiting for others out."""

import time


class Stopwatch:
    """Sums up the times between `start` and `stop`, in seconds."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._since: float | None = None

    def start(self) -> None:
        """Run; nothing changes if it runs already."""
        if self._since is None:
            self._since = time.perf_counter()

    def stop(self) -> None:
        """Stand still; nothing changes if it does already."""
        if self._since is not None:
            self._sum += time.perf_counter() - self._since
            self._since = None

    def exclude(self, seconds: float) -> None:
        """Leave out time that ran while it should have stood still."""
        self._sum -= seconds

    def take(self) -> float:
        """Stop, return the sum, and begin anew from 0."""
        self.stop()
        taken, self._sum = self._sum, 0.0
        return max(0.0, taken)
