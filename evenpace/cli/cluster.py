"""`evenpace cluster`: many jobs that share one Ray cluster."""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from evenpace.cli.options import F, example, user_mistakes
from evenpace.cli.peers import RAY_ADDRESS, with_cluster_token, with_credentials
from evenpace.cli.settings import configured, option
from evenpace.cli.submit import with_job
from evenpace.dashboard.config import PageConfig
from evenpace.overview import cluster_status
from idl.errors import DeadlineExceededError
from rpc.address import Address
from rpc.credentials import Credentials
from scheduler.ray.cluster_settings import FOLDER, LIVE_POLICIES, ClusterSettings
from scheduler.ray.submission import Submission

if TYPE_CHECKING:
    from scheduler.ray.cluster_scheduler import SchedulerHandle

_POLL_SECONDS = 0.5
_START_SECONDS = 60.0  # for the scheduler to begin
_JOBS = 20  # jobs that have ended, and are shown
_LINES = 5  # of the log
_TOKEN = f"{__name__}.token"  # the caller's, in the command's context
_PAGE = Address("127.0.0.1", 4381)  # beside that of a manager's page


@click.group()
def cluster() -> None:
    """Share a Ray cluster among many jobs: they wait, start, grow, shrink, and give way to others.

    A policy decides which devices each job has. Jobs grow and shrink without a restart; one that has to give
    up all devices keeps its state, and goes on later. `evenpace attach` follows one that runs.
    """


def _command(name: str, text: str) -> Callable[[F], Any]:
    def add(function: F) -> Any:
        settings = {"allow_interspersed_args": False} if name == "submit" else {}
        asks = function if name == "up" else _with_token(function)
        return cluster.command(name, context_settings=settings)(example(text)(RAY_ADDRESS(asks)))

    return add


def _with_token(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option of the caller's token, with which `_scheduler` calls."""

    @with_cluster_token
    @functools.wraps(function)
    def command(token: str, **others: Any) -> Any:
        click.get_current_context().meta[_TOKEN] = token
        return function(**others)

    return command


@contextlib.contextmanager
def _scheduler(address: str | None) -> "Iterator[SchedulerHandle]":
    """Connect to a cluster, and find its scheduler."""
    from scheduler.ray import cluster, cluster_scheduler

    with cluster.connection(address or "auto"):
        yield cluster_scheduler.find(click.get_current_context().meta[_TOKEN])


@_command(
    "up", "evenpace cluster up --policy priority --storage /mnt/shared/evenpace --address 10.0.0.1:6379"
)
@configured(ClusterSettings, "settings")
def up(settings: ClusterSettings, address: str | None) -> None:
    """Start the scheduler of a Ray cluster, which outlives this command.

    In a storage that `evenpace cluster down` has left, it goes on with the jobs of before.
    """
    from rpc.tokens import TokenKeys
    from scheduler.ray import cluster, cluster_scheduler

    settings = replace(settings, storage=settings.storage.expanduser().absolute())
    keys = TokenKeys(settings.token_keys) if settings.token_keys is not None else None
    with cluster.connection(address or "auto") as where:
        handle = cluster_scheduler.start(settings, keys)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                now = handle.ask("status")
                break
            except DeadlineExceededError:
                if time.monotonic() > deadline:
                    raise
        left = sum(job["state"] != "ended" for job in now["jobs"])
        click.echo(
            f"the cluster at {where} is shared by {now['policy']}; its folder is {now['folder']}"
            + (f"; {left} jobs go on" if left else "")
        )
        if keys is None:
            click.echo("without --token-key, all who reach the Ray cluster may change all jobs", err=True)


@_command("submit", "evenpace cluster submit --workers 4 --weight 2 train.py --epochs 10")
@with_job("cpus_per_worker", "gpus_per_worker", "storage", "start_timeout")
@click.option(
    "--weight",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the cluster, relative to other jobs'; with `priority`, who comes first.",
)
def submit(job: Submission, weight: float, address: str | None) -> None:
    """Have SCRIPT wait for its turn on a shared cluster, and return at once.

    --workers is the number of devices that it can use; it starts with one where no more are free.
    """
    with _scheduler(address) as scheduler:
        scheduler.submit(job, weight)
    click.echo(f"job {job.job} is submitted: `evenpace cluster status` tells when it runs")


@_command("status", "evenpace cluster status --json")
@click.option("--json", "as_json", is_flag=True, help="Print all that is known, for programs.")
@click.option("--all", "everything", is_flag=True, help="Show all jobs that have ended, and more of the log.")
def status(as_json: bool, everything: bool, address: str | None) -> None:
    """Show who has which devices, who waits, and what was decided last."""
    with _scheduler(address) as scheduler:
        now = scheduler.ask("status")
    if as_json:
        click.echo(json.dumps(now, indent=1))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_nodes(now), _jobs(now, None if everything else _JOBS))
    click.echo(f"devices in use: {cluster_status.in_use(now)}")
    for line in now["log"][-(len(now["log"]) if everything else _LINES) :]:
        console.print(line, markup=False, soft_wrap=True)
    if now["trouble"]:
        click.echo(f"in trouble: {now['trouble']}", err=True)


@cluster.command("report")
@example("evenpace cluster report --storage /mnt/shared/evenpace --out cluster.html")
@option(ClusterSettings, "storage", text="The storage of the cluster's scheduler, as of `up`.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("runs/reports/cluster.html"),
    show_default=True,
    help="Where the page goes.",
)
@RAY_ADDRESS
@_with_token
def report(storage: Path, out: Path, address: str | None) -> None:
    """Make a page about a shared cluster: who had which devices when, and how long each job took.

    It is made from the record in the storage, whether the cluster is there or not, and loads nothing else.
    With --address or --token-file, the scheduler is asked for it, and a user sees no names of others' jobs.
    """
    from evenpace.reports.cluster_page import write_cluster_page
    from scheduler.cluster import history

    context = click.get_current_context()
    named = context.get_parameter_source("address") is ParameterSource.COMMANDLINE
    if named or context.meta[_TOKEN]:
        with _scheduler(address) as scheduler:
            lines = scheduler.ask("record")
    else:
        file = storage.expanduser() / FOLDER / history.FILE
        with user_mistakes():
            if not file.exists():
                raise ValueError(
                    f"{file}: there is no record; `evenpace cluster up --storage DIR` begins one in DIR"
                )
            lines = history.read(file)
    with user_mistakes():
        write_cluster_page(history.account(lines, time.time()), out)
    click.echo(f"Report: {out}")


@_command("dashboard", "evenpace cluster dashboard --http 127.0.0.1:4381 --address 10.0.0.1:6379")
@configured(PageConfig, "config", without=("credentials",), http=_PAGE)
@with_credentials("token")
def dashboard(config: PageConfig, credentials: Credentials | None, address: str | None) -> None:
    """Serve a live page about a shared cluster, until Ctrl-C: who has what, and who waits for what.

    It changes nothing, and goes on where the scheduler, or the whole cluster, is away for a while. Viewers
    see what the token may see that it is started with.
    """
    from evenpace.dashboard.cluster_page import cluster_page
    from evenpace.dashboard.listening import listen
    from evenpace.dashboard.page_server import serve
    from scheduler.ray.asking_process import AskingProcess

    token = click.get_current_context().meta[_TOKEN]
    with user_mistakes(), AskingProcess(address or "auto", token) as scheduler:
        config = replace(config, credentials=credentials or Credentials())
        config.check()
        listener = listen(config.http)
        scheduler.status()  # where there is none, that is an error now
        serve(config, cluster_page(scheduler, config), listener, lambda url: click.echo(f"page on {url}"))


@_command("cancel", "evenpace cluster cancel digits")
@click.argument("name")
def cancel(name: str, address: str | None) -> None:
    """End the job NAME, or take it out of the queue."""
    with _scheduler(address) as scheduler:
        scheduler.ask("cancel", name)


@_command("pause", "evenpace cluster pause digits")
@click.argument("name")
def pause(name: str, address: str | None) -> None:
    """Suspend the job NAME, with its state kept, until `evenpace cluster resume`."""
    with _scheduler(address) as scheduler:
        scheduler.ask("hold", name, True)


@_command("resume", "evenpace cluster resume digits")
@click.argument("name")
def resume(name: str, address: str | None) -> None:
    """Let the job NAME go on after `evenpace cluster pause`, when it is its turn."""
    with _scheduler(address) as scheduler:
        scheduler.ask("hold", name, False)


@_command("policy", "evenpace cluster policy priority")
@click.argument("name", type=click.Choice(LIVE_POLICIES))
def policy(name: str, address: str | None) -> None:
    """Have another policy decide from now on; jobs keep what it does not change."""
    with _scheduler(address) as scheduler:
        scheduler.ask("change_policy", name)


@_command("drain", "evenpace cluster drain 10.0.0.3")
@click.argument("node")
def drain(node: str, address: str | None) -> None:
    """Take all workers off NODE before it is switched off; by its address or its id's beginning."""
    with _scheduler(address) as scheduler:
        name = scheduler.ask("drain", node)
    click.echo(f"node {name} gets no more workers; those that it has leave: `evenpace cluster status`")


@_command("down", "evenpace cluster down")
def down(address: str | None) -> None:
    """Suspend all jobs, and end the scheduler; `evenpace cluster up` goes on with them."""
    with _scheduler(address) as scheduler:
        said: list[str] = []
        while left := scheduler.ask("close"):
            if left != said:
                click.echo(f"waiting for {', '.join(left)} to be suspended ...", err=True)
            said = left
            time.sleep(_POLL_SECONDS)
        scheduler.end()


def _nodes(now: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(
        "node", "address", f"devices ({now['device']})", "used", "", title=f"shared by {now['policy']}"
    )
    for row in cluster_status.node_rows(now):
        table.add_row(*map(str, row))
    return table


def _jobs(now: Mapping[str, Any], ended: int | None) -> Any:
    """Return the table of jobs, with so many of those that have ended."""
    from rich.table import Table
    from rich.text import Text

    owners = any(job["owner"] for job in now["jobs"])
    columns = [
        "job",
        *(["owner"] if owners else []),
        "state",
        "weight",
        "devices",
        "of",
        "where",
        "for",
        "why",
    ]
    table = Table(*columns)
    for row in cluster_status.job_rows(now, ended):
        shown = row._asdict()
        del shown["since"]
        if not owners:
            del shown["owner"]
        table.add_row(*(Text(str(value)) for value in shown.values()))
    return table
