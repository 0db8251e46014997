"""A log that strangers cannot fill: so many lines a second, then one line that says how many were left out.

It knows nothing of what the lines say. Those that only our own mistakes can cause need no limit.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any


class LimitedLog:
    """Passes lines on to a logger, each level's with a limit of its own, so that crowds do not hide errors.

    Args:
        log: Where they go.
        per_second: Lines of one level, at most.
        left_out: What is said of those beyond that, with a `%d` for how many.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        log: logging.Logger,
        per_second: int,
        left_out: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._per_second = per_second
        self._left_out = left_out
        self._clock = clock
        self._since = clock()
        self._lines: Counter[int] = Counter()  # of this second, by level, those left out included

    def __call__(self, level: int, message: str, *args: Any, extra: Mapping[str, Any] | None = None) -> None:
        """Log a line, as `logging.Logger.log` does, unless there were enough of its level in this second."""
        self.tick()
        self._lines[level] += 1
        if self._lines[level] <= self._per_second:
            self._log.log(level, message, *args, extra=extra)

    def tick(self) -> None:
        """To be called now and then: say what was left out, once its second is over."""
        now = self._clock()
        if now - self._since < 1.0:
            return
        lines, self._since = self._lines, now
        self._lines = Counter()
        for level, count in lines.items():
            if count > self._per_second:
                self._log.log(level, self._left_out, count - self._per_second)
