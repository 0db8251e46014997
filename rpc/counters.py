"""Plain counts of what a process does: written where it happens, for a few additions, and read by others.

A number has one thread that writes it. Whoever reads does so from any thread, sees whole numbers, and holds
nobody up; figures that are read one after the other may be a moment apart. Nothing is sent from here.
"""

from bisect import bisect_left
from collections.abc import Sequence

# Seconds: each twice to two and a half times the one before it, from what a call takes to what training does.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """How many values there were up to each of some bounds, and what they sum to.

    Args:
        bounds: Ascending.

    Attributes:
        bounds: As given.
        counts: (len(bounds) + 1,) of the values above the bound before and up to this one; last, above all.
        total: The sum of the values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class MethodTally:
    """The calls of one method.

    Attributes:
        outcomes: How many were answered, by outcome: "ok", the name of the exception that was declared, or
            "failed".
        seconds: From when a call had come to its answer, the wait for others included.
    """

    __slots__ = ("outcomes", "seconds")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.seconds = Histogram()

    def answered(self, outcome: str, seconds: float) -> None:
        """Count a call."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.seconds.add(seconds)


class ServerTally:
    """What a server has done.

    Args:
        methods: Of its service.

    Attributes:
        methods: The calls that were answered, by method.
        accepted: Connections that came in.
        refused: Connections that were closed, and told why.
        cut_off: Connections that were closed without a word.
        received: Bytes of messages, without what TLS adds.
        sent: Bytes of answers, likewise.
        late: Seconds by which the event loop was late when it was looked at last.
    """

    __slots__ = ("accepted", "cut_off", "late", "methods", "received", "refused", "sent")

    def __init__(self, methods: Sequence[str]) -> None:
        self.methods = {method: MethodTally() for method in methods}
        self.accepted = self.refused = self.cut_off = 0
        self.received = self.sent = 0
        self.late = 0.0
