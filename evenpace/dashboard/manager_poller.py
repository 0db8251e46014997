"""The poller that asks the manager for the state of its jobs, once for all viewers, in its own thread."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from batchsize_manager.client import ManagerClient
from evenpace.dashboard.config import PageConfig
from evenpace.dashboard.identity import job_of
from evenpace.overview.feed import Feed, FollowedJob
from evenpace.overview.figures import JobFigures, Timeline
from idl.errors import EvenpaceError

log = logging.getLogger(__name__)

_LOOKED_AT = 15.0  # seconds after a request for which there counts as being a viewer
_PATIENCE = 5.0  # seconds of a call to the manager before viewers see that it does not answer
_FRESH_SECONDS = 2.0  # for which a request waits for a new poll at most
_CATCHING_UP = 0.1  # seconds between polls while a job's past is still being fetched


class ManagerPoller:
    """The latest state of the manager's jobs. Readers hold `reading`, during which no call is awaited.

    Args:
        config: The page's configuration: the manager, and how often to poll it.
    """

    def __init__(self, config: PageConfig) -> None:
        self._config = config
        self._lock = threading.RLock()
        self._fresh = threading.Condition(self._lock)  # of `version`
        self._seen = -math.inf  # when the manager answered last
        self._due = threading.Event()  # a viewer has come
        self._over = threading.Event()
        self._looked_at = -math.inf
        self._news: Callable[[], None] = lambda: None
        self._jobs: dict[str, FollowedJob] = {}
        self._figures: dict[str, tuple[Any, JobFigures]] = {}
        self._asking_since: float | None = None
        self._error = "the manager has not been asked yet"
        self.version = 0  # number of polls so far, failed ones included

    def start(self, news: Callable[[], None]) -> None:
        """Start polling; `news` is called in the thread whenever `version` has changed."""
        self._news = news
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def await_fresh(self, age: float) -> None:
        """Wait a while for the next poll, if the last is older than `age` seconds; not within `reading`."""
        self.note_viewer()
        with self._lock:
            known = self.version
            stale = time.monotonic() - self._seen > age
            if stale and (not self._error or not known):
                self._due.set()
                self._fresh.wait_for(lambda: self.version != known or self._over.is_set(), _FRESH_SECONDS)

    def stop(self) -> None:
        """Stop polling, without waiting for an answer of the manager."""
        self._over.set()
        self._due.set()

    def note_viewer(self) -> None:
        """Note that there is a viewer: poll the manager often for a while."""
        idle = time.monotonic() - self._looked_at > _LOOKED_AT
        self._looked_at = time.monotonic()
        if idle:
            self._due.set()

    @property
    def error(self) -> str:
        """The reason why the jobs' present state is not known; empty if it is."""
        since = self._asking_since
        if not self._error and since is not None and time.monotonic() - since > _PATIENCE:
            return f"the manager at {self._config.manager} does not answer"
        return self._error

    @contextmanager
    def reading(self) -> Iterator[dict[str, FollowedJob]]:
        """Hold the jobs as they are while the block runs."""
        with self._lock:
            yield self._jobs

    def figures(self, name: str, job: FollowedJob) -> JobFigures:
        """Return a job's figures with all of its workers, computed once for all viewers; within `reading`."""
        standing = (job.summary.run, job.summary.attempt, job.view.last, job.states)
        known = self._figures.get(name)
        if known is None or known[0] != standing:
            known = self._figures[name] = (standing, job.view.figures(job.states))
        return known[1]

    def timeline(self, job: FollowedJob, points: int, workers: list[str], last: float) -> Timeline:
        """Return a job's timeline; within `reading`."""
        return job.view.timeline(points, workers, last)

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
        """Return the seconds until the next poll."""
        if time.monotonic() - self._looked_at > _LOOKED_AT:
            return self._config.idle_interval
        return _CATCHING_UP if feed is not None and feed.behind else self._config.interval

    def _asking(self, begins: bool) -> None:
        self._asking_since = time.monotonic() if begins else None


class _Unlocked:
    """A manager's client for a thread that holds a lock, which it releases while it waits for answers."""

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
