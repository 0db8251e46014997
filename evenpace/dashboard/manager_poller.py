"""The poller that asks the manager for the state of its jobs; see `polling`."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from batchsize_manager.client import ManagerClient
from evenpace.dashboard.config import ManagerPageConfig
from evenpace.dashboard.identity import job_of
from evenpace.dashboard.polling import Polling
from evenpace.overview.feed import Feed, FollowedJob
from evenpace.overview.figures import JobFigures, Timeline

_CATCHING_UP = 0.1  # seconds between polls while a job's past is still being fetched


class ManagerPoller:
    """The latest state of the manager's jobs. Readers hold `reading`, during which no call is awaited.

    Args:
        config: The page's configuration: the manager, and how often to poll it.
    """

    def __init__(self, config: ManagerPageConfig) -> None:
        self._config = config
        self._lock = threading.RLock()
        self._feed: Feed | None = None
        self._jobs: dict[str, FollowedJob] = {}
        self._figures: dict[str, tuple[Any, JobFigures]] = {}
        self.polling = Polling(f"the manager at {config.manager}", self._poll, config)

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

    def _poll(self) -> float | None:
        if self._feed is None:
            job = job_of(self._config.credentials)
            manager = ManagerClient(self._config.manager, self._config.credentials)
            client = _Unlocked(manager, self._lock, self.polling.asking)
            self._feed = Feed(client, None if job is None else [job])  # type: ignore[arg-type]
        with self._lock:
            self._feed.poll()
            self._jobs = dict(self._feed.jobs)
            self._figures = {name: made for name, made in self._figures.items() if name in self._jobs}
        return _CATCHING_UP if self._feed.behind else None


class _Unlocked:
    """A manager's client for a thread that holds a lock, which it releases while it waits for answers."""

    def __init__(
        self, client: ManagerClient, lock: Any, asking: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._client = client
        self._lock = lock
        self._asking = asking

    def jobs(self, *asked: Any) -> Any:
        return self._call(self._client.jobs, *asked)

    def status(self, *asked: Any) -> Any:
        return self._call(self._client.status, *asked)

    def history(self, *asked: Any) -> Any:
        return self._call(self._client.history, *asked)

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        self._lock.release()
        try:
            with self._asking():
                return method(*arguments)
        finally:
            self._lock.acquire()
