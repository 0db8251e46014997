"""A log that unauthenticated peers cannot fill: n lines a second, then one line with the number left out.

This module knows nothing of the lines' meaning. Lines that peers cannot cause need no limit.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any


class LimitedLog:
    """A limited logger; each level has a limit of its own, so that many warnings do not hide errors.

    Args:
        per_second: Lines of one level per second, at most.
        left_out: The line for those left out, with a `%d` for their number.
        clock: Returns the time in seconds.
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
        self._lines: Counter[int] = Counter()  # lines of this second by level, those left out included

    def __call__(self, level: int, message: str, *args: Any, extra: Mapping[str, Any] | None = None) -> None:
        """Log a line, as `logging.Logger.log` does, unless the level's limit of this second is reached."""
        self.tick()
        self._lines[level] += 1
        if self._lines[level] <= self._per_second:
            self._log.log(level, message, *args, extra=extra)

    def tick(self) -> None:
        """Log how many lines were left out, once their second is over; to be called regularly."""
        now = self._clock()
        if now - self._since < 1.0:
            return
        lines, self._since = self._lines, now
        self._lines = Counter()
        for level, count in lines.items():
            if count > self._per_second:
                self._log.log(level, self._left_out, count - self._per_second)
