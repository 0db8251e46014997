"""The loop that asks a service for its state, once for all viewers, in a thread of its own."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evenpace.dashboard.config import PageConfig
from idl.errors import EvenpaceError

log = logging.getLogger(__name__)

_LOOKED_AT = 15.0  # seconds after a request for which there counts as being a viewer
_PATIENCE = 5.0  # seconds of a call before viewers see that the service does not answer
_FRESH_SECONDS = 2.0  # for which a request waits for a new poll at most


class Polling:
    """Polls a service again and again, more often while somebody looks.

    Args:
        service: The service in words, for messages.
        poll: Function that asks the service and keeps its answer (EvenpaceError: there is none); it returns
            the seconds until there is more to ask, or None for the configured interval.
        config: The page's configuration: how often to poll.
    """

    def __init__(self, service: str, poll: Callable[[], float | None], config: PageConfig) -> None:
        self._service = service
        self._poll = poll
        self._config = config
        self._fresh = threading.Condition()  # of `version`
        self._seen = -math.inf  # when the service answered last
        self._due = threading.Event()  # a viewer has come
        self._over = threading.Event()
        self._looked_at = -math.inf
        self._news: Callable[[], None] = lambda: None
        self._asking_since: float | None = None
        self._error = f"{service} has not been asked yet"
        self.version = 0  # number of polls so far, failed ones included

    def start(self, news: Callable[[], None]) -> None:
        """Start polling; `news` is called in the thread whenever `version` has changed."""
        self._news = news
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        """Stop polling, without waiting for an answer of the service."""
        self._over.set()
        self._due.set()

    def await_fresh(self, age: float) -> None:
        """Wait a while for the next poll, if the last is older than `age` seconds."""
        self.note_viewer()
        with self._fresh:
            known = self.version
            stale = time.monotonic() - self._seen > age
            if stale and (not self._error or not known):
                self._due.set()
                self._fresh.wait_for(lambda: self.version != known or self._over.is_set(), _FRESH_SECONDS)

    def note_viewer(self) -> None:
        """Note that there is a viewer: poll often for a while."""
        idle = time.monotonic() - self._looked_at > _LOOKED_AT
        self._looked_at = time.monotonic()
        if idle:
            self._due.set()

    @property
    def error(self) -> str:
        """The reason why the service's present state is not known; empty if it is."""
        since = self._asking_since
        if not self._error and since is not None and time.monotonic() - since > _PATIENCE:
            return f"{self._service} does not answer"
        return self._error

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Note that the service is being asked while the block runs: it is to answer soon."""
        self._asking_since = time.monotonic()
        try:
            yield
        finally:
            self._asking_since = None

    def _run(self) -> None:
        while not self._over.is_set():
            error, pause = "", None
            try:
                pause = self._poll()
            except EvenpaceError as failure:
                error = str(failure)
            except Exception as failure:  # noqa: BLE001 - a defect; viewers are told, and it is tried again
                error = f"what {self._service} answers cannot be shown: {failure!r}"
            with self._fresh:
                self.version += 1
                self._fresh.notify_all()
                if not error:
                    self._seen = time.monotonic()
                if error and error != self._error and not self._over.is_set():
                    log.warning("%s", error)
                elif self._error and not error:
                    log.info("following %s", self._service)
                self._error = error
            self._news()
            idle = time.monotonic() - self._looked_at > _LOOKED_AT
            self._due.wait(self._config.idle_interval if idle else pause or self._config.interval)
            self._due.clear()
