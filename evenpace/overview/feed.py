"""Following a manager's jobs: each poll fetches what is new, for a view of each job. Nothing here draws."""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchsize_manager.client import ManagerClient
from batchsize_manager.job.regrouping import GroupChange
from evenpace.overview.job_view import JobView
from idl.errors import InvalidRequestError

_EVENTS = 200  # events kept of each job, the last ones
_FETCHING = 0.25  # seconds of a poll after which no further piece of a job's past is fetched
_STATUS_SHARE = 0.05  # share of the time that may go into asking for members and events


@dataclass
class FollowedJob:
    """State of a job as of the last poll."""

    summary: Any  # `JobSummary` of the wire
    # `MemberStatus` of the wire, in the order of their slices.
    members: list[Any] = field(default_factory=list)
    # The last `Event`s of the wire, oldest first.
    events: deque[Any] = field(default_factory=lambda: deque(maxlen=_EVENTS))
    changes: list[Any] = field(default_factory=list)  # the last `GroupChange`s of the wire, oldest first
    view: JobView = field(init=False)  # the job's iterations
    behind: int = 0  # number of iterations that are complete and not in the view yet
    _attempt: int = 0  # that the last iteration in the view belongs to
    _asked_at: tuple[Any, ...] = ()  # state, members and attempt when members and events were last asked for
    _status_due: float = 0.0  # when they may be asked for again, in the monotonic clock's seconds

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Empty the view."""
        self.view = JobView(self.summary.spec.total_batch_size)

    @property
    def states(self) -> dict[str, str]:
        """Return the members' states, by name."""
        return {member.worker: member.state for member in self.members}

    @property
    def ranks(self) -> dict[str, int]:
        """Return the ranks of the members that are in the present attempt's group, by name."""
        return {member.worker: member.rank for member in self.members if member.rank is not None}


def values_of(one: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return attributes of an object by their names, for JSON."""
    return {name: getattr(one, name) for name in names}


def change_values(change: Any) -> dict[str, Any]:
    """Return the fields of a `GroupChange` of the wire, for JSON."""
    return values_of(change, GroupChange.__dataclass_fields__)


class Feed:
    """Reader of a manager's jobs, for one thread.

    Args:
        client: Connection to the manager, which the caller closes.
        jobs: Names of the jobs to follow; None for all, which needs a token of all jobs where the manager
            asks for tokens.
    """

    def __init__(self, client: ManagerClient, jobs: Sequence[str] | None = None) -> None:
        self._client = client
        self._asked = jobs
        # The manager's jobs, by name; a new run under a name replaces the earlier one.
        self.jobs: dict[str, FollowedJob] = {}

    def poll(self) -> None:
        """Fetch what is new of all jobs.

        The past of a long job comes in pieces, over several polls: `FollowedJob.behind` has the rest.

        Raises:
            EvenpaceError: The manager cannot be reached, or refuses; `jobs` keeps what was known.
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
                # Viewers in other threads may look before the new iterations have been read.
                job.behind += max(0, summary.iteration - job.summary.iteration)
                job.summary = summary
                self.jobs[summary.job] = job
        except BaseException:
            self.jobs = known
            raise
        until = time.monotonic() + _FETCHING
        for job in self.jobs.values():
            self._fetch_status(job)
        for job in self.jobs.values():
            self._fetch_iterations(job, until)

    @property
    def behind(self) -> int:
        """Return the number of complete iterations that are in no view yet, over all jobs."""
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

    def _fetch_status(self, job: FollowedJob) -> None:
        """Ask for members and events, unless the job has ended or they were asked for a moment ago."""
        summary = job.summary
        asked_at = (summary.state, summary.members, summary.attempt)
        now = time.monotonic()
        if asked_at == job._asked_at and (summary.state == "ended" or now < job._status_due):
            return
        status = self._client.status(summary.job, job.events[-1].number if job.events else -1)
        if status.summary.run != summary.run:
            return  # another run: the next poll follows it
        job.members = list(status.members)
        job.events.extend(status.events)
        job.changes = list(status.changes or ())
        job._asked_at = asked_at
        took = time.monotonic() - now
        job._status_due = now + took / _STATUS_SHARE

    def _fetch_iterations(self, job: FollowedJob, until: float) -> None:
        """Fetch iterations in pieces, at least one; no further one after `until`, in monotonic seconds."""
        first = self._next(job)
        while first < job.summary.iteration:
            run, iterations = self._client.history(job.summary.job, first)
            if run != job.summary.run or not iterations:
                first = job.summary.iteration if run == job.summary.run else first
                break
            if job.view.last >= 0 and iterations[0].attempt > max(job._attempt, job.summary.attempt):
                break  # the job was rewound since its summary was read: the next poll sees from where
            job.view.add(iterations)
            job._attempt = iterations[-1].attempt
            first = job.view.last + 1
            if time.monotonic() >= until:
                break
        job.behind = max(0, job.summary.iteration - first)

    def _next(self, job: FollowedJob) -> int:
        """Return the first iteration to fetch; a view whose last iteration was rewound is emptied."""
        last = job.view.last
        if last < 0 or job.summary.attempt == job._attempt:
            return last + 1
        _, found = self._client.history(job.summary.job, last, 1)
        if found and (found[0].iteration, found[0].attempt) == (last, job._attempt):
            return last + 1
        job.forget()
        return 0
