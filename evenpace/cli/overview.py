"""`evenpace status` and `evenpace top`: a manager's jobs and their stragglers, once and live."""

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from evenpace.cli.options import example
from evenpace.cli.peers import MANAGER, as_client
from evenpace.cli.settings import PLACES
from idl.errors import InvalidRequestError
from rpc.credentials import Credentials
from rpc.places import Where

if TYPE_CHECKING:
    from batchsize_manager.client import ManagerClient
    from evenpace.overview.feed import Feed, FollowedJob

_TIMEOUT = 5.0  # seconds for each answer
_CATCHING_UP = 10.0  # seconds in which a long job's past is read, at most
_SUMMARY = (
    *("job", "run", "state", "reason", "workers", "members", "iteration", "attempt", "policy", "predictor"),
    *("mode", "batch_size", "sizer", "sizing", "exchange", "group_size", "age"),
)
_MEMBER = ("worker", "state", "iteration", "silence", "rank")
_BOUNDS = ("minimum", "maximum", "granularity")

_manager = click.option(
    "--manager",
    type=PLACES,
    default=MANAGER,
    show_default=True,
    help="The BatchSizeManager.",
)


@click.command()
@example("evenpace status default --manager 127.0.0.1:4300")
@click.argument("job", required=False)
@_manager
@click.option("--json", "as_json", is_flag=True, help="Print all that is known, as JSON.")
@as_client
def status(job: str | None, manager: Where, as_json: bool, credentials: Credentials | None) -> None:
    """Show a manager's jobs, or one JOB with its workers: who slows whom, and what balancing brings.

    Status 0 if the manager answers, else 1. Where it asks for tokens, showing all jobs needs one of all jobs.
    """
    from batchsize_manager.client import ManagerClient

    with ManagerClient(manager, credentials, _TIMEOUT) as client:
        feed = look(client, job, manager)
    if as_json:
        click.echo(json.dumps(_for_json(feed, str(manager)), indent=1, allow_nan=False))
        return
    _show(feed, job)


@click.command()
@example("evenpace top default --manager 127.0.0.1:4300")
@click.argument("job", required=False)
@_manager
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between looks at the manager.",
)
@as_client
def top(job: str | None, manager: Where, interval: float, credentials: Credentials | None) -> None:
    """Watch a manager's jobs, or one JOB, live: the slowest workers first.

    Keys: up and down choose a job, Enter shows it, b goes back, q ends. While the manager cannot be
    reached, it says since when, and goes on once it can. Where the output is no terminal, all is shown once.
    """
    from batchsize_manager.client import ManagerClient
    from evenpace.cli.top import watch

    with ManagerClient(manager, credentials, _TIMEOUT) as client:
        if not sys.stdout.isatty() or _console().is_dumb_terminal:
            feed = look(client, job, manager)
            click.echo("The output is no terminal that can be drawn on: shown once.", err=True)
            _show(feed, job)
        else:
            watch(_console(), client, job, str(manager), interval)


def look(client: "ManagerClient", job: str | None, manager: Where) -> "Feed":
    """Return the jobs as they are, with their past as far as it can be read in `_CATCHING_UP` seconds."""
    from evenpace.overview.feed import Feed

    feed = Feed(client, None if job is None else [job])
    until = time.monotonic() + _CATCHING_UP
    feed.poll()
    while feed.behind and time.monotonic() < until:
        feed.poll()
    if job is not None and job not in feed.jobs:
        raise InvalidRequestError(f"there is no job {job!r} at {manager}")
    return feed


def _show(feed: "Feed", job: str | None) -> None:
    from evenpace.cli.overview_tables import details, jobs_table, shown

    console = _console()
    if job is None:
        console.print(jobs_table([shown(one, 0) for one in feed.jobs.values()], console.width))
    else:
        console.print(details(shown(feed.jobs[job]), console.width))


def _console() -> Any:
    from rich.console import Console

    wide = None if sys.stdout.isatty() else 220  # columns, for files and pipes
    return Console(width=wide, highlight=False)


def _for_json(feed: "Feed", manager: str) -> dict[str, Any]:
    return {"manager": manager, "jobs": [_job_for_json(job) for job in feed.jobs.values()]}


def _job_for_json(job: "FollowedJob") -> dict[str, Any]:
    from evenpace.overview.feed import change_values, values_of
    from idl.translation import read_spec

    summary = job.summary
    return {
        **values_of(summary, _SUMMARY),
        "spec": asdict(read_spec(summary.spec)),
        "behind": job.behind,
        "figures": asdict(job.view.figures(job.states)),
        "members": [
            values_of(member, _MEMBER)
            | values_of(member.bounds, _BOUNDS)
            | {"at_once": member.bounds.at_once or 1}
            for member in job.members
        ],
        "group_changes": [change_values(change) for change in job.changes],
        "events": [values_of(event, ("number", "at", "text")) for event in job.events],
    }
