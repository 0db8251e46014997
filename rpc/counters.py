"""Plain counters of a process's work: each event costs a few additions, and metrics read them.

Each number has one thread that writes it. Any thread may read, without locks, and sees complete numbers;
figures that are read one after the other may be a moment apart. Nothing is sent from here.
"""

from bisect import bisect_left
from collections.abc import Sequence

# Seconds, each 2 to 2.5 times the one before: from the time of a call to that of an iteration.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """A histogram of values, with their sum.

    Args:
        bounds: Upper bounds of the buckets, ascending.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds  # the upper bounds
        # (len(bounds) + 1,), number of values in each bucket; the last is for those above all bounds.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0  # the sum of the values

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class MethodTally:
    """Counters of one method's calls."""

    __slots__ = ("outcomes", "seconds")

    def __init__(self) -> None:
        # Answered calls by outcome: "ok", the declared exception's name, or "failed".
        self.outcomes: dict[str, int] = {}
        # Times from a call's arrival to its answer, the wait for other workers included.
        self.seconds = Histogram()

    def count(self, outcome: str, seconds: float) -> None:
        """Count an answered call, which took `seconds`."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.seconds.add(seconds)


class ServerTally:
    """Counters of a server.

    Attributes:
        accepted: Connections that were accepted.
        refused: Connections that were closed with a reason.
        cut_off: Connections that were closed without one.
        received: Bytes of messages, without those of TLS.
        sent: Bytes of answers, likewise.
    """

    __slots__ = ("accepted", "cut_off", "loop_lag", "methods", "received", "refused", "sent")

    def __init__(self, methods: Sequence[str]) -> None:
        self.methods = {method: MethodTally() for method in methods}  # the answered calls, by method
        self.accepted = self.refused = self.cut_off = 0
        self.received = self.sent = 0
        self.loop_lag = 0.0  # seconds by which the event loop was late at its last sweep
