"""`evenpace submit` and `evenpace attach`: jobs on a Ray cluster, followed on the terminal."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.passed_on import check_command, passed_on, with_exchange
from evenpace.cli.peers import RAY_ADDRESS, with_cluster_token
from evenpace.cli.settings import ADDRESS, configured
from idl.errors import EvenpaceError, InvalidRequestError, UnavailableError
from rpc.address import Address
from scheduler.ray.submission import Submission, name_now

if TYPE_CHECKING:
    from evenpace.cli.job_lines import JobLines
    from evenpace.ray.job_page import JobPage
    from scheduler.ray.cluster import JobHandle
    from scheduler.ray.supervisor import Finish


_HTTP = click.option(
    "--http",
    type=ADDRESS,
    default=None,
    help="Serve a live page about the job on this machine, for as long as the job is followed.",
)


def _pairs(context: click.Context, option: click.Parameter, given: Sequence[str]) -> Mapping[str, str]:
    """Read texts such as NAME=VALUE."""
    pairs = [text.partition("=") for text in given]
    for name, equals, value in pairs:
        if not equals or not name:
            raise InvalidRequestError(f"{option.opts[0][2:]} {name + equals + value!r}: must be NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _amounts(context: click.Context, option: click.Parameter, given: Sequence[str]) -> Mapping[str, float]:
    """Read texts such as NAME=2."""
    amounts = {}
    for name, text in _pairs(context, option, given).items():
        try:
            amounts[name] = float(text)
        except ValueError as error:
            raise InvalidRequestError(
                f"{option.opts[0][2:]} {name}={text}: must be a number from 0 on"
            ) from error
    return amounts


def with_job(*without: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options and arguments that make a job, which the command takes as `job`.

    Args:
        *without: Fields of `Submission` that get no option.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @configured(Submission, "submission", without=("shards", "fixed_group", *without))
        @with_exchange
        @click.option(
            "--fixed-group",
            is_flag=True,
            help="With --all-reduce: the script makes the workers' group, by torchrun's variables. It keeps "
            "its size; a loss starts all workers again.",
        )
        @passed_on
        @click.option(
            "--resource",
            "resources_per_worker",
            multiple=True,
            callback=_amounts,
            metavar="NAME=AMOUNT",
            help="A further resource of Ray's that is set aside for each worker; may be repeated.",
        )
        @click.option(
            "--service-resource",
            "resources_per_service",
            multiple=True,
            callback=_amounts,
            metavar="NAME=AMOUNT",
            help="A resource of Ray's that is set aside for the manager and for each shard, which keeps them "
            "on nodes that have it; may be repeated.",
        )
        @click.option(
            "--env",
            "environment",
            multiple=True,
            callback=_pairs,
            metavar="NAME=VALUE",
            help="Set a variable for the workers.",
        )
        @click.argument("script", type=click.Path(path_type=Path))
        @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
        @functools.wraps(function)
        def command(
            submission: Submission, script: Path, working_dir: Path | None = None, **others: Any
        ) -> Any:
            found = working_dir / script if working_dir is not None else script
            if not found.is_file():
                raise InvalidRequestError(f"training script {str(found)!r}: no such file")
            given = {name: others.pop(name) for name in Submission.__dataclass_fields__ if name in others}
            with user_mistakes():
                job = replace(
                    submission,
                    name=submission.name or name_now(script.stem),
                    script=script if working_dir is not None else script.resolve(),
                    storage=submission.storage.expanduser().absolute(),
                    **given,
                )
            _check_options(job)
            return function(job=job, **({"working_dir": working_dir} if working_dir else {}), **others)

        return command

    return add


@click.command(context_settings={"allow_interspersed_args": False})
@example("evenpace submit --workers 4 --shards 2 --address 10.0.0.1:6379 train.py --epochs 10")
@with_job()
@click.option(
    "--working-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=None,
    help="Send this folder to all nodes, and run SCRIPT, a path within it, there. Left out: SCRIPT is at the "
    "same place on all nodes.",
)
@RAY_ADDRESS
@_HTTP
@click.option("--detach", is_flag=True, help="Do not follow the job.")
def submit(
    job: Submission,
    address: str | None,
    http: Address | None,
    detach: bool,
    working_dir: Path | None = None,
) -> None:
    """Train with SCRIPT as a job on a Ray cluster, and follow it.

    Without --address, a cluster is started on this machine for this job. Otherwise Ctrl-C leaves the job,
    which goes on: `evenpace attach` follows it again. Status 0 once the job is done, 1 if it failed.
    """
    from scheduler.ray import cluster

    if detach and address is None:
        raise click.UsageError("--detach needs --address: a cluster of its own ends with this command")
    if detach and http is not None:
        raise click.UsageError(
            "give --detach or --http, not both: the page is there while the job is followed"
        )
    with _page(http) as page, cluster.connection(address, cpus=job.cpus, working_dir=working_dir) as where:
        handle = cluster.submit(job)
        click.echo(f"job {job.job} on the Ray cluster at {where}; its folder is {job.folder}", err=True)
        if not detach:
            _show(handle, leave=address is not None, where=where, page=page)


@click.command()
@example("evenpace attach digits --address 10.0.0.1:6379")
@RAY_ADDRESS
@with_cluster_token
@_HTTP
@click.option("--end", is_flag=True, help="End the job.")
@click.option(
    "--access",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    metavar="DIR",
    help="Do not follow the job: write a certificate, its token and its manager's address into DIR, for "
    "commands such as `evenpace top`.",
)
@click.argument("name", required=False)
def attach(
    address: str | None, token: str, http: Address | None, end: bool, access: Path | None, name: str | None
) -> None:
    """Follow the job NAME on a Ray cluster, from the last lines of its log on; without NAME, list the jobs.

    A job of a shared cluster may wait, or be suspended meanwhile. Ctrl-C leaves the job, which goes on.
    """
    from evenpace.overview.cluster_status import standing
    from scheduler.ray import cluster, cluster_scheduler
    from scheduler.ray.following import follow_shared

    with _page(http) as page, cluster.connection(address or "auto") as where:
        running = cluster_scheduler.running_jobs(token)
        if name is None:
            for job in running:
                click.echo(job)
            return
        if not end and access is None and (scheduler := cluster_scheduler.sharing(name, token)) is not None:

            def begin(handle: "JobHandle") -> None:
                if page is not None:
                    page.trust(handle.credentials())

            follow = partial(follow_shared, scheduler, name, standing=standing, begin=begin)
            _follow(name, follow, None, where, page)
            return
        handle = cluster.find(name, running)
        if access is not None:
            _write_access(handle, access)
            return
        if end:
            handle.cancel()
        _show(handle, leave=True, where=where, page=page)


def _page(http: Address | None) -> "contextlib.AbstractContextManager[JobPage | None]":
    """Return the page about a job at an address, which is bound before anything is asked of a cluster."""
    from evenpace.ray.job_page import JobPage

    return contextlib.nullcontext() if http is None else JobPage(http)


def _show(handle: "JobHandle", *, leave: bool, where: str, page: "JobPage | None") -> None:
    """Follow a job that runs, as `_follow`; with `leave`, Ctrl-C leaves it."""
    from scheduler.ray.following import end, follow

    def until_end(show: "Callable[[JobHandle, JobLines], Finish]", lines: "JobLines") -> "Finish":
        finish = show(handle, lines)
        handle.goodbye()
        return finish

    if page is not None:
        page.trust(handle.credentials())
    _follow(handle.name, partial(until_end, follow), None if leave else partial(until_end, end), where, page)


def _follow(
    name: str,
    follow: "Callable[[JobLines], Finish]",
    end: "Callable[[JobLines], Finish] | None",
    where: str,
    page: "JobPage | None",
) -> None:
    """Show a job until it ends or, by Ctrl-C, is left or ended; exit with its status.

    Args:
        follow: Shows it until it ends.
        end: Ends it, and shows it until then; None where Ctrl-C leaves it.
        where: The cluster's address.
    """
    from evenpace.cli.job_lines import JobLines

    with JobLines(page) as lines:
        try:
            finish = follow(lines)
        except KeyboardInterrupt:
            if end is None:
                lines.note(f"the job goes on: evenpace attach {name} --address {where}")
                return
            finish = end(lines)
    if finish.state == "failed":
        raise EvenpaceError(f"job {name!r} failed: {finish.reason}")
    if finish.state == "cancelled":
        raise click.Abort


def _write_access(handle: "JobHandle", folder: Path) -> None:
    """Write what commands need that ask a job's manager, and print their options."""
    from scheduler.ray.access import Access

    manager = handle.news().manager
    if manager is None:
        raise UnavailableError(f"job {handle.name!r}: its manager does not listen at present; try again")
    access = Access.write(folder, handle.credentials())
    access.move(manager)
    click.echo(" ".join(("--manager", access.manager, *access.options)))


def _check_options(job: Submission) -> None:
    """Check the options of all processes before anything is started."""
    from scheduler.ray.commands import task
    from scheduler.ray.process_actor import LISTEN
    from scheduler.ray.secrets import JobSecrets

    for name in (*job.services[:2], job.worker(0)):
        command = task(name, job, JobSecrets({}, {})).command
        check_command([word.replace(LISTEN, "127.0.0.1:0") for word in command], job.arguments)
