"""The honest job as `evenpace.lab.bench.hostile` sees it: a process that says how it goes."""

import contextlib
import queue
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from evenpace.lab.bench.hostile_job import HonestConfig
from evenpace.lab.speaker import Speaker
from idl.errors import UnavailableError

_START_SECONDS = 120.0


@dataclass
class Honest:
    """The honest job's process; a context manager.

    Attributes:
        config: What it does.
        workers: Names and incarnations, once they have joined.
        seconds: Of each iteration so far.
        ended: How it ended, once it has.
    """

    config: HonestConfig
    workers: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    ended: dict[str, Any] | None = None

    def __enter__(self) -> "Honest":
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._speaker = Speaker("evenpace.lab.bench.hostile_job", self.config.to_json(), self._said)
        self._speaker.__enter__()
        self._heard_at = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._speaker.__exit__(kind, error, trace)

    @property
    def silent_for(self) -> float:
        """Seconds since the last iteration, or anything else, was heard of."""
        return time.monotonic() - self._heard_at

    def listen(self, timeout: float = 0.0) -> None:
        """Take in what it has said."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._said.get(timeout=timeout) if timeout else self._said.get_nowait())
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

    def finish(self) -> dict[str, Any]:
        """Let it end after a few more iterations; how it ended.

        Raises:
            UnavailableError: It does not end.
        """
        self._speaker.finish()
        return self.wait()

    def wait(self) -> dict[str, Any]:
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
