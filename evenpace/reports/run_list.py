"""Lists of runs, in a manager's state or at a live manager, from which a user chooses one."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from batchsize_manager.client import ManagerClient
from batchsize_manager.storage.state_reader import StateReader
from evenpace.overview import phrases
from evenpace.reports.run_source import LiveRun, RunSource, StoredRun
from idl.errors import InvalidRequestError

_NAMED = 12  # the most runs that an error names


@dataclass(frozen=True)
class RunLine:
    """A run in a list; `begun` is in seconds since 1970."""

    run: str
    job: str
    begun: float
    state: str
    iterations: int
    policy: str
    ending: str


class StoredRuns:
    """The runs in a manager's state.

    Args:
        source_name: The state's place, in words.
    """

    def __init__(self, reader: StateReader, source_name: str) -> None:
        self._reader = reader
        self.source_name = source_name

    def source(self, wanted: str) -> RunSource:
        """Return the source of the run that a user names; see `choose`."""
        return StoredRun(self._reader, choose(self._reader.runs(), wanted), self.source_name)

    def lines(self) -> list[RunLine]:
        """Return all runs, the last ones first."""
        lines = []
        for run in reversed(self._reader.runs()):
            last = self._reader.last_records(run.run, 1)
            iterations = last[0].iteration + 1 - run.state.first_iteration if last else 0
            ended = run.ended is not None
            state = phrases.job_state("ended", run.ending or "") if ended else "not ended"
            lines.append(
                RunLine(run.run, run.job, run.begun, state, iterations, run.policy, run.ending or "")
            )
        return lines


class LiveRuns:
    """The runs of a live manager.

    Args:
        source_name: The manager's address, in words.
    """

    def __init__(self, client: ManagerClient, source_name: str) -> None:
        self._client = client
        self.source_name = source_name

    def source(self, wanted: str) -> RunSource:
        """Return the source of the run that a user names; see `choose`."""
        jobs: Sequence[Any] = self._client.jobs().jobs[::-1]  # the manager lists running jobs first
        return LiveRun(self._client, choose(jobs, wanted), self.source_name)

    def lines(self) -> list[RunLine]:
        """Return all runs, unfinished ones first."""
        now = time.time()
        return [
            RunLine(
                job.run,
                job.job,
                now - job.age,
                phrases.job_state(job.state, job.reason),
                job.iteration,
                job.policy,
                job.reason,
            )
            for job in self._client.jobs().jobs
        ]


class _Run(Protocol):
    @property
    def run(self) -> str: ...

    @property
    def job(self) -> str: ...


_T = TypeVar("_T", bound=_Run)


def choose(runs: Sequence[_T], wanted: str) -> _T:
    """Return the run that a user names: a job's last one, or the one whose id begins so.

    Args:
        runs: Objects with `run` and `job`, the oldest first.
        wanted: A job's name, or the first characters of a run's id.

    Raises:
        InvalidRequestError: No run matches, or several do; the message names the runs.
    """
    of_job = [run for run in runs if run.job == wanted]
    if of_job:
        return of_job[-1]
    matching = [run for run in runs if wanted and run.run.startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise InvalidRequestError(f"run {wanted!r} is ambiguous: {_named(matching)}")
    if not runs:
        raise InvalidRequestError(f"no run or job {wanted!r}: there is none at all yet")
    raise InvalidRequestError(f"no run or job {wanted!r}; there are {_named(runs[::-1])}")


def _named(runs: Sequence[_Run]) -> str:
    names = [f"{run.run} (job {run.job})" for run in runs[:_NAMED]]
    more = len(runs) - len(names)
    return ", ".join(names) + (f" and {more} more; see --list" if more else "")
