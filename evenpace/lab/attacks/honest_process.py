"""The honest job as `evenpace.lab.attacks.attack` sees it: a process that says how it goes."""

import contextlib
import queue
import time
from typing import Any

from evenpace.lab.attacks.honest_job import HonestConfig
from evenpace.lab.speaker import Speaker
from idl.errors import UnavailableError

_START_SECONDS = 120.0


class Honest(Speaker):
    """The honest job's process; a context manager.

    Args:
        config: What it does.

    Attributes:
        workers: Names and incarnations, once they have joined.
        seconds: Of each iteration so far.
        ended: How it ended, once it has.
    """

    def __init__(self, config: HonestConfig) -> None:
        self._heard: queue.Queue[dict[str, Any]] = queue.Queue()
        super().__init__("evenpace.lab.attacks.honest_job", config.to_json(), self._heard)
        self._heard_at = time.monotonic()
        self.workers: list[tuple[str, str]] = []
        self.seconds: list[float] = []
        self.ended: dict[str, Any] | None = None

    @property
    def silent_for(self) -> float:
        """Seconds since the last iteration, or anything else, was heard of."""
        return time.monotonic() - self._heard_at

    def listen(self, timeout: float = 0.0) -> None:
        """Take in what it has said."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._heard.get(timeout=timeout) if timeout else self._heard.get_nowait())
                timeout = 0.0

    def begin(self) -> None:
        """Wait for its first iterations.

        Raises:
            UnavailableError: They do not come.
        """
        until = time.monotonic() + _START_SECONDS
        while len(self.seconds) < 3:
            self.listen(0.2)
            if self.ended is not None or time.monotonic() > until:
                raise UnavailableError(f"the honest job did not start to train: {self.ended}")

    def end_soon(self) -> dict[str, Any]:
        """Let it end after a few more iterations; how it ended.

        Raises:
            UnavailableError: It does not end.
        """
        self.finish()
        return self.outcome()

    def outcome(self) -> dict[str, Any]:
        """How it ended."""
        while self.ended is None:
            self.listen(0.5)
            if self.silent_for > _START_SECONDS:
                raise UnavailableError("the honest job hangs")
        return self.ended

    def _take(self, said: dict[str, Any]) -> None:
        self._heard_at = time.monotonic()
        if "workers" in said:
            self.workers = [(worker, incarnation) for worker, incarnation in said["workers"]]
        elif "iteration" in said:
            self.seconds.append(said["seconds"])
        elif self.ended is None:
            self.ended = said
