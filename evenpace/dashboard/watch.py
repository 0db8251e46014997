"""Asks the manager how its jobs stand, once for all viewers, in a thread of its own."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from evenpace.dashboard.config import PageConfig
from evenpace.dashboard.identity import job_of
from evenpace.overview.client import ManagerClient
from evenpace.overview.feed import Feed, FollowedJob
from evenpace.overview.figures import JobFigures, Timeline
from idl.errors import EvenpaceError

log = logging.getLogger(__name__)

_LOOKED_AT = 15.0  # seconds for which one request counts as somebody who looks
_PATIENCE = 5.0  # seconds of a call to the manager before viewers are told that it does not answer
_FRESH_SECONDS = 2.0  # that somebody waits for what is new, at most
_CATCHING_UP = 0.1  # seconds from one look to the next while a job's past is still being fetched


class Watch:
    """What is known of the manager's jobs. Readers hold `reading`; nobody waits for the manager meanwhile.

    Args:
        config: Which manager, and how often.

    Attributes:
        version: Counts looks that succeeded or failed.
    """

    def __init__(self, config: PageConfig) -> None:
        self._config = config
        self._lock = threading.RLock()
        self._fresh = threading.Condition(self._lock)  # of `version`
        self._seen = -math.inf  # when the manager answered last
        self._due = threading.Event()  # somebody has come to look
        self._over = threading.Event()
        self._looked_at = -math.inf
        self._news: Callable[[], None] = lambda: None
        self._jobs: dict[str, FollowedJob] = {}
        self._figures: dict[str, tuple[Any, JobFigures]] = {}
        self._asking_since: float | None = None
        self._error = "the manager has not been asked yet"
        self.version = 0

    def start(self, news: Callable[[], None]) -> None:
        """Begin; `news` is called in the thread whenever `version` has changed."""
        self._news = news
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def await_fresh(self, age: float) -> None:
        """Wait a while for the next look, if the last is older than `age` seconds; not within `reading`."""
        self.looked_at()
        with self._lock:
            known = self.version
            stale = time.monotonic() - self._seen > age
            if stale and (not self._error or not known):
                self._due.set()
                self._fresh.wait_for(lambda: self.version != known or self._over.is_set(), _FRESH_SECONDS)

    def stop(self) -> None:
        """End, without waiting for an answer of the manager."""
        self._over.set()
        self._due.set()

    def looked_at(self) -> None:
        """Somebody looks: ask the manager often for a while."""
        idle = time.monotonic() - self._looked_at > _LOOKED_AT
        self._looked_at = time.monotonic()
        if idle:
            self._due.set()

    @property
    def error(self) -> str:
        """Why the manager's jobs are not known as they are now; empty where they are."""
        since = self._asking_since
        if not self._error and since is not None and time.monotonic() - since > _PATIENCE:
            return f"the manager at {self._config.manager} does not answer"
        return self._error

    @contextmanager
    def reading(self) -> Iterator[dict[str, FollowedJob]]:
        """The jobs, which stay as they are meanwhile."""
        with self._lock:
            yield self._jobs

    def figures(self, name: str, job: FollowedJob) -> JobFigures:
        """A job's figures with all of its workers, made once for all who ask; within `reading`."""
        standing = (job.summary.run, job.summary.attempt, job.view.last, job.states)
        known = self._figures.get(name)
        if known is None or known[0] != standing:
            known = self._figures[name] = (standing, job.view.figures(job.states))
        return known[1]

    def timeline(self, job: FollowedJob, points: int, workers: list[str], first: int) -> Timeline:
        """A job's course; within `reading`."""
        return job.view.timeline(points, workers, first)

    def _run(self) -> None:
        client: _Unlocked | None = None
        feed: Feed | None = None
        while not self._over.is_set():
            error = ""
            try:
                if client is None or feed is None:
                    job = job_of(self._config.credentials)
                    manager = ManagerClient(self._config.manager, self._config.credentials)
                    client = _Unlocked(manager, self._lock, self._asking)
                    feed = Feed(client, None if job is None else [job])  # type: ignore[arg-type]
                with self._lock:
                    feed.poll()
                    self._jobs = dict(feed.jobs)
                    self._figures = {name: made for name, made in self._figures.items() if name in feed.jobs}
            except EvenpaceError as failure:
                error = str(failure)
            with self._lock:
                self.version += 1
                self._fresh.notify_all()
                if not error:
                    self._seen = time.monotonic()
                if error and error != self._error:
                    log.warning("%s", error)
                elif self._error and not error:
                    log.info("following the manager at %s", self._config.manager)
                self._error = error
            self._news()
            self._due.wait(self._pause(feed if not error else None))
            self._due.clear()
        if client is not None:
            client.close()

    def _pause(self, feed: Feed | None) -> float:
        """Seconds until the next look."""
        if time.monotonic() - self._looked_at > _LOOKED_AT:
            return self._config.idle_interval
        return _CATCHING_UP if feed is not None and feed.behind else self._config.interval

    def _asking(self, begins: bool) -> None:
        self._asking_since = time.monotonic() if begins else None


class _Unlocked:
    """A manager's client for a thread that holds a lock, which it lets go while it waits for answers."""

    def __init__(self, client: ManagerClient, lock: Any, asking: Callable[[bool], None]) -> None:
        self._client = client
        self._lock = lock
        self._asking = asking

    def jobs(self, *asked: Any) -> Any:
        return self._call(self._client.jobs, *asked)

    def status(self, *asked: Any) -> Any:
        return self._call(self._client.status, *asked)

    def history(self, *asked: Any) -> Any:
        return self._call(self._client.history, *asked)

    def close(self) -> None:
        self._client.close()

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        self._lock.release()
        self._asking(True)
        try:
            return method(*arguments)
        finally:
            self._asking(False)
            self._lock.acquire()
