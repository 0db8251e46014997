"""Follows a manager's jobs: fetches what is new, and keeps a view of each. It draws nothing."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from evenpace.overview.client import ManagerClient
from evenpace.overview.job_view import JobView
from idl.errors import InvalidRequestError

_EVENTS = 200  # the last ones of each job, kept
_FETCHING = 0.25  # seconds of a poll after which no further piece of a job's past is fetched
_STATUS_SHARE = 0.05  # of the time, that may go into asking for members and events


@dataclass
class FollowedJob:
    """A job as it was at the last poll.

    Attributes:
        summary: The wire's `JobSummary`.
        members: The wire's `MemberStatus`, in the order of their slices.
        events: The wire's `Event`, the last ones, oldest first.
        view: Its iterations.
        behind: How many iterations of it are complete and not in the view yet.
    """

    summary: Any
    members: list[Any] = field(default_factory=list)
    events: deque[Any] = field(default_factory=lambda: deque(maxlen=_EVENTS))
    view: JobView = field(default_factory=JobView)
    behind: int = 0
    _attempt: int = 0  # of the last iteration in the view
    _standing: tuple[Any, ...] = ()  # what of the summary members and events were last asked for at
    _status_due: float = 0.0  # when they may be asked for again, in the monotonic clock's seconds

    @property
    def states(self) -> dict[str, str]:
        """Of the members, by name."""
        return {member.worker: member.state for member in self.members}


class Feed:
    """Follows a manager's jobs, for one thread.

    Args:
        client: Asks the manager; it stays the caller's to close.
        jobs: Which; None for all, for which a token of all jobs is needed where tokens are asked for.

    Attributes:
        jobs: Those that there are, by name; a new run of a name begins anew.
    """

    def __init__(self, client: ManagerClient, jobs: Sequence[str] | None = None) -> None:
        self._client = client
        self._asked = jobs
        self.jobs: dict[str, FollowedJob] = {}

    def poll(self) -> None:
        """Fetch what is new.

        The past of a long job comes in pieces, over several polls; see `FollowedJob.behind`.

        Raises:
            EvenpaceError: The manager cannot be reached, or refuses; what was known stays.
        """
        known = self.jobs
        self.jobs = {}
        try:
            for summary in self._summaries():
                if summary.job in self.jobs:  # an earlier run of the name, which has ended
                    continue
                job = known.get(summary.job)
                if job is None or job.summary.run != summary.run:
                    job = FollowedJob(summary, behind=summary.iteration)
                # Viewers may look before what is new has been read.
                job.behind += max(0, summary.iteration - job.summary.iteration)
                job.summary = summary
                self.jobs[summary.job] = job
        except BaseException:
            self.jobs = known
            raise
        until = time.monotonic() + _FETCHING
        for job in self.jobs.values():
            self._look_at(job)
        for job in self.jobs.values():
            self._read(job, until)

    @property
    def behind(self) -> int:
        """How many iterations there are that no view has yet, over all jobs."""
        return sum(job.behind for job in self.jobs.values())

    def _summaries(self) -> list[Any]:
        if self._asked is None:
            return list(self._client.jobs().jobs)
        found = []
        for name in self._asked:
            try:
                found += self._client.jobs(name).jobs
            except InvalidRequestError:  # there is no such job, yet or any more
                continue
        return found

    def _look_at(self, job: FollowedJob) -> None:
        """Ask for members and events, unless all is over, or it would be too often for so little."""
        summary = job.summary
        standing = (summary.state, summary.members, summary.attempt)
        now = time.monotonic()
        if standing == job._standing and (summary.state == "ended" or now < job._status_due):
            return
        status = self._client.status(summary.job, job.events[-1].number if job.events else -1)
        if status.summary.run != summary.run:
            return  # the next poll begins anew
        job.members = list(status.members)
        job.events.extend(status.events)
        job._standing = standing
        took = time.monotonic() - now
        job._status_due = now + took / _STATUS_SHARE

    def _read(self, job: FollowedJob, until: float) -> None:
        """Fetch iterations, in pieces, at least one."""
        first = self._next(job)
        while first < job.summary.iteration:
            run, iterations = self._client.history(job.summary.job, first)
            if run != job.summary.run or not iterations:
                first = job.summary.iteration if run == job.summary.run else first
                break
            if job.view.last >= 0 and iterations[0].attempt > max(job._attempt, job.summary.attempt):
                break  # the job was rewound just now: the next poll sees from where
            job.view.add(iterations)
            job._attempt = iterations[-1].attempt
            first = job.view.last + 1
            if time.monotonic() >= until:
                break
        job.behind = max(0, job.summary.iteration - first)

    def _next(self, job: FollowedJob) -> int:
        """The first iteration that is to be fetched, after what the view has and still holds."""
        last = job.view.last
        if last < 0 or job.summary.attempt == job._attempt:
            return last + 1
        _, found = self._client.history(job.summary.job, last, 1)
        if found and (found[0].iteration, found[0].attempt) == (last, job._attempt):
            return last + 1
        job.view = JobView()
        return 0
