"""`evenpace report`: one page about a run."""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.peers import as_client
from evenpace.cli.settings import configured
from idl.settings import Setting
from rpc.credentials import Credentials
from rpc.places import Where

_LISTED = 50  # runs that are listed
_ID = 8  # characters of a run's id: enough to tell it from others


@dataclass(frozen=True)
class _Asked:
    """The run that is asked for, where it is, and what is made of it."""

    run: Annotated[str | None, Setting("", positional=True)] = None
    state: Annotated[
        Path | None, Setting("From a manager's --state; the manager may be running.", folder=True)
    ] = None
    manager: Annotated[Where | None, Setting("From a manager that runs.")] = None
    out: Annotated[
        Path | None,
        Setting("Where the page goes.  [default: in runs/reports]", folder=False),
    ] = None
    json_path: Annotated[
        Path | None,
        Setting("Write the numbers here, too.", name="json", folder=False),
    ] = None
    list_runs: Annotated[
        bool,
        Setting("Show the runs that there are, and make no page.", name="list"),
    ] = False
    against: Annotated[str | None, Setting("Compare the run with another one.", metavar="RUN")] = None
    open_page: Annotated[bool, Setting("Open the page in the browser.", name="open")] = False


@click.command()
@example(
    "evenpace report --state state/ --list\n"
    "  evenpace report digits --state state/ --out digits.html --open\n"
    "  evenpace report digits --manager 127.0.0.1:4300\n"
    "  evenpace report balanced --against even --state state/"
)
@configured(_Asked, "asked")
@as_client
def report(asked: _Asked, credentials: Credentials | None) -> None:
    """Make a page about a run: who slows whom, what balancing won, and all that happened.

    RUN is a job's name, which means its last run, or the first characters of a run's id. With --against, the
    page sets the run beside another one instead. The page is one file that loads nothing else. A run may
    still be going on: the page shows it as it is.
    """
    from rich.console import Console

    if (asked.state is None) == (asked.manager is None):
        raise click.UsageError("give --state or --manager, one of them")
    if (asked.run is None) != asked.list_runs:
        raise click.UsageError("name a run, or give --list")
    from evenpace.reports.run_list import choose

    with user_mistakes(), _opened(asked, credentials) as runs:
        if asked.run is None:
            _print_runs(runs, Console())
            return
        path = _write([choose(runs, name) for name in (asked.against, asked.run) if name is not None], asked)
    click.echo(f"Report: {path}" + (f", {asked.json_path}" if asked.json_path is not None else ""))
    if asked.open_page:
        click.launch(str(path))


def _write(sources: Sequence[Any], asked: _Asked) -> Path:
    """Write the page about one run, or about the second of two against the first; return its path."""
    from evenpace.reports.files import write_json
    from evenpace.reports.run_page import write_run_page
    from evenpace.reports.two_runs import two_runs
    from evenpace.reports.two_runs_page import write_two_runs_page

    facts = sources[-1].facts
    name = re.sub(r"[^\w.-]+", "-", facts.job).strip(".-")[:60]
    ids = "-".join(source.facts.run[:_ID] for source in reversed(sources))
    path = asked.out or Path("runs/reports") / f"{name or 'job'}-{ids}.html"
    reports = [_gathered(source) for source in sources]
    path.parent.mkdir(parents=True, exist_ok=True)
    content: Any
    if len(reports) == 1:
        (content,) = reports
        write_run_page(content, path)
    else:
        content = two_runs(*reports)
        write_two_runs_page(content, path)
    if asked.json_path is not None:
        write_json(content.as_json(), asked.json_path)
    return path


def _gathered(source: Any) -> Any:
    """Read all of a run, and show the progress."""
    from rich.console import Console
    from rich.progress import Progress

    from evenpace.reports.run_data import gather

    with Progress(console=Console(stderr=True), transient=True) as progress:
        total = 0 if source.last is None else source.last + 1 - source.first
        task = progress.add_task(f"Reading {source.facts.job}", total=total)
        return gather(source, time.time(), lambda count: progress.advance(task, count))


@contextlib.contextmanager
def _opened(asked: _Asked, credentials: Credentials | None) -> Iterator[Sequence[Any]]:
    """Yield the runs of a state folder or of a manager, the last ones last."""
    from evenpace.reports.run_list import live_runs, stored_runs

    if asked.state is not None:
        from batchsize_manager.storage.state_reader import open_state

        with open_state(asked.state) as reader:
            yield stored_runs(reader, f"the manager's state in {asked.state}")
        return
    from batchsize_manager.client import ManagerClient

    assert asked.manager is not None
    with ManagerClient(asked.manager, credentials) as client:
        yield live_runs(client, f"the manager at {asked.manager}")


def _print_runs(runs: Sequence[Any], console: Any) -> None:
    from rich.table import Table

    if not runs:
        click.echo("There is no run yet.")
        return
    table = Table(title=f"Runs, from {runs[0].facts.source}", title_justify="left", box=None, pad_edge=False)
    for column in ("run", "job", "begun", "state", "iterations", "policy", "why it ended"):
        right = column == "iterations"
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "why it ended")
    for run in runs[: -_LISTED - 1 : -1]:
        one, count = run.facts, f"{run.iterations:,}"
        begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.begun)) if one.begun else "-"
        table.add_row(one.run[:_ID], one.job, begun, one.state, count, one.policy, one.ending)
    console.print(table)
    if len(runs) > _LISTED:
        click.echo(f"{len(runs) - _LISTED} earlier ones are left out.")
