"""`evenpace report`: one page about a run."""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.peers import as_client
from evenpace.cli.settings import PLACES
from rpc.credentials import Credentials
from rpc.places import Where

_LISTED = 50  # runs that are listed
_ID = 8  # characters of a run's id: enough to tell it from others


@click.command()
@example(
    "evenpace report --state state/ --list\n"
    "  evenpace report digits --state state/ --out digits.html --open\n"
    "  evenpace report digits --manager 127.0.0.1:4300\n"
    "  evenpace report balanced --against even --state state/"
)
@click.argument("run", required=False)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="From a manager's --state; the manager may be running.",
)
@click.option("--manager", type=PLACES, default=None, help="From a manager that runs.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Where the page goes.  [default: in runs/reports]",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write the numbers here, too.",
)
@click.option("--list", "list_runs", is_flag=True, help="Show the runs that there are, and make no page.")
@click.option("--against", default=None, metavar="RUN", help="Compare the run with another one.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
@as_client
def report(
    run: str | None,
    state: Path | None,
    manager: Where | None,
    out: Path | None,
    json_path: Path | None,
    list_runs: bool,
    against: str | None,
    open_page: bool,
    credentials: Credentials | None,
) -> None:
    """Make a page about a run: who slows whom, what balancing won, and all that happened.

    RUN is a job's name, which means its last run, or the first characters of a run's id. With --against, the
    page sets the run beside another one instead. The page is one file that loads nothing else. A run may
    still be going on: the page shows it as it is.
    """
    from rich.console import Console

    if (state is None) == (manager is None):
        raise click.UsageError("give --state or --manager, one of them")
    if (run is None) != list_runs:
        raise click.UsageError("name a run, or give --list")
    with user_mistakes(), _opened(state, manager, credentials) as runs:
        if run is None:
            _print_runs(runs, Console())
            return
        sources = [runs.source(name) for name in (against, run) if name is not None]
        path = _write(sources, out, json_path)
    click.echo(f"Report: {path}" + (f", {json_path}" if json_path is not None else ""))
    if open_page:
        click.launch(str(path))


def _write(sources: Sequence[Any], out: Path | None, json_path: Path | None) -> Path:
    """Write the page about one run, or about the second of two against the first; return its path."""
    from evenpace.reports.files import write_json
    from evenpace.reports.run_page import write_run_page
    from evenpace.reports.two_runs import two_runs
    from evenpace.reports.two_runs_page import write_two_runs_page

    facts = sources[-1].facts
    name = re.sub(r"[^\w.-]+", "-", facts.job).strip(".-")[:60]
    ids = "-".join(source.facts.run[:_ID] for source in reversed(sources))
    path = out or Path("runs/reports") / f"{name or 'job'}-{ids}.html"
    reports = [_gathered(source) for source in sources]
    path.parent.mkdir(parents=True, exist_ok=True)
    content: Any
    if len(reports) == 1:
        (content,) = reports
        write_run_page(content, path)
    else:
        content = two_runs(*reports)
        write_two_runs_page(content, path)
    if json_path is not None:
        write_json(content.as_json(), json_path)
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
def _opened(state: Path | None, manager: Where | None, credentials: Credentials | None) -> Iterator[Any]:
    """Yield the runs of a state folder or of a manager."""
    from evenpace.reports.run_list import LiveRuns, StoredRuns

    if state is not None:
        from batchsize_manager.storage.state_reader import open_state

        with open_state(state) as reader:
            yield StoredRuns(reader, f"the manager's state in {state}")
        return
    from batchsize_manager.client import ManagerClient

    assert manager is not None
    with ManagerClient(manager, credentials) as client:
        yield LiveRuns(client, f"the manager at {manager}")


def _print_runs(runs: Any, console: Any) -> None:
    from rich.table import Table

    lines = runs.lines()
    if not lines:
        click.echo("There is no run yet.")
        return
    table = Table(title=f"Runs, from {runs.source_name}", title_justify="left", box=None, pad_edge=False)
    for column in ("run", "job", "begun", "state", "iterations", "policy", "why it ended"):
        right = column == "iterations"
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "why it ended")
    for line in lines[:_LISTED]:
        begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.begun)) if line.begun else "-"
        table.add_row(
            line.run[:_ID], line.job, begun, line.state, f"{line.iterations:,}", line.policy, line.ending
        )
    console.print(table)
    if len(lines) > _LISTED:
        click.echo(f"{len(lines) - _LISTED} earlier ones are left out.")
