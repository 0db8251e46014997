"""Lists of runs, in a manager's state or at a live manager, from which a user chooses one."""

from collections.abc import Sequence

from batchsize_manager.client import ManagerClient
from batchsize_manager.storage.state_reader import StateReader
from evenpace.reports.run_source import LiveRun, RunSource, StoredRun
from idl.errors import InvalidRequestError

_NAMED = 12  # the most runs that an error names


def stored_runs(reader: StateReader, source: str) -> list[RunSource]:
    """Return all runs in a manager's state, the oldest first; `source` is the state's place, in words."""
    return [StoredRun(reader, run, source) for run in reader.runs()]


def live_runs(client: ManagerClient, source: str) -> list[RunSource]:
    """Return all runs of a live manager, unfinished ones last; `source` is its address, in words."""
    return [LiveRun(client, job, source) for job in client.jobs().jobs[::-1]]  # it lists these first


def choose(runs: Sequence[RunSource], wanted: str) -> RunSource:
    """Return the run that a user names: a job's last one, or the one whose id begins so.

    Args:
        runs: All runs, the oldest first.
        wanted: A job's name, or the first characters of a run's id.

    Raises:
        InvalidRequestError: No run matches, or several do; the message names the runs.
    """
    of_job = [run for run in runs if run.facts.job == wanted]
    if of_job:
        return of_job[-1]
    matching = [run for run in runs if wanted and run.facts.run.startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise InvalidRequestError(f"run {wanted!r} is ambiguous: {_named(matching)}")
    if not runs:
        raise InvalidRequestError(f"no run or job {wanted!r}: there is none at all yet")
    raise InvalidRequestError(f"no run or job {wanted!r}; there are {_named(runs[::-1])}")


def _named(runs: Sequence[RunSource]) -> str:
    names = [f"{run.facts.run} (job {run.facts.job})" for run in runs[:_NAMED]]
    more = len(runs) - len(names)
    return ", ".join(names) + (f" and {more} more; see --list" if more else "")
