"""`evenpace lab trace`: traces of workers' speeds, for `evenpace lab bench predictors`."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenpace.cli.options import F, example, user_mistakes
from evenpace.cli.peers import as_client
from evenpace.cli.settings import configured, option
from lab.traces import (
    Perturbation,
    Trace,
    TraceRecorder,
    contention_trace,
    read_usage,
    usage_trace,
    write_trace,
)
from rpc.credentials import Credentials
from rpc.places import Where
from worker.config import SessionConfig

if TYPE_CHECKING:  # importing it takes a while
    from lab.observer import Observer

_POLL_SECONDS = 0.5  # seconds between two looks at the job
_ANSWER_SECONDS = 10.0  # seconds in which the manager must answer each


@click.group()
def trace() -> None:
    """Make traces of workers' speeds, as CSV files with a row for each worker and iteration.

    The columns are worker, iteration, speed (samples/s), cpu and memory (usage from 0 to 1 as the iteration
    begins), and expected (the best possible prediction) in traces that are made up.
    """


def _out(function: F) -> F:
    return click.option(
        "--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The trace, a CSV file."
    )(function)


def _made(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of all generated traces."""
    options = (
        click.option("--iterations", type=int, default=2000, show_default=True),
        configured(Perturbation, "perturbation"),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
    )
    for add in reversed(options):
        function = add(function)
    return function


@trace.command("usage")
@example("evenpace lab trace usage vm_usage.csv.gz --workers 8 --out trace.csv")
@click.argument("usage_path", metavar="FILE", type=click.Path(path_type=Path))
@_out
@click.option("--workers", type=int, default=None, help="[default: all that --vms is enough for, or 4]")
@click.option("--vms", default=None, metavar="NAME,...", help="Machines to use.  [default: they are drawn]")
@click.option(
    "--iterations-per-step", type=int, default=10, show_default=True, help="That fit between two steps."
)
@_made
def trace_usage(
    usage_path: Path,
    out: Path,
    workers: int | None,
    vms: str | None,
    iterations: int,
    iterations_per_step: int,
    perturbation: Perturbation,
    seed: int,
) -> None:
    """Make a trace from machines' usage: how fast workers would be beside those who used them.

    FILE has the columns vm,step,cpu_percent,mem_percent and may be gzipped. A worker's speed is in
    proportion to the CPU that is free, and falls by up to a half as memory in use passes 90%. Usage is
    interpolated between steps. A worker goes through several machines, one after the other, where one has
    not steps enough.
    """
    with user_mistakes():
        made = usage_trace(
            read_usage(usage_path),
            workers=workers,
            machines=vms.split(",") if vms is not None else (),
            iterations=iterations,
            iterations_per_step=iterations_per_step,
            perturbation=perturbation,
            seed=seed,
        )
        _write(made, out)


@trace.command("contention")
@example("evenpace lab trace contention --workers 4 --out trace.csv")
@_out
@click.option("--workers", type=int, default=4, show_default=True)
@click.option(
    "--slowdown", type=float, default=0.5, show_default=True, help="Of its speed, left under contention."
)
@click.option("--shortest", type=int, default=20, show_default=True, help="Period in iterations.")
@click.option("--longest", type=int, default=60, show_default=True, help="Period in iterations.")
@click.option(
    "--usage-noise",
    type=float,
    default=0.02,
    show_default=True,
    help="Standard deviation of the measured usage.",
)
@_made
def trace_contention(
    out: Path,
    workers: int,
    slowdown: float,
    shortest: int,
    longest: int,
    usage_noise: float,
    iterations: int,
    perturbation: Perturbation,
    seed: int,
) -> None:
    """Make a trace of contention that comes and goes abruptly, in the middle of iterations."""
    with user_mistakes():
        made = contention_trace(
            workers=workers,
            iterations=iterations,
            slowdown=slowdown,
            shortest=shortest,
            longest=longest,
            usage_noise=usage_noise,
            perturbation=perturbation,
            seed=seed,
        )
        _write(made, out)


@trace.command("live")
@example("evenpace lab trace live --manager 10.0.0.1:4300 --out trace.csv")
@option(SessionConfig, "manager")
@option(SessionConfig, "job")
@_out
@click.option(
    "--idle",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds without a new iteration after which to stop.",
)
@as_client
def trace_live(manager: Where, job: str, out: Path, idle: float, credentials: Credentials | None) -> None:
    """Record a job, until it ends: one that is running, is about to start, or has just ended.

    A file that is there is continued if it has the same run of the job, so the command may be stopped and
    started again. A worker's first iteration is left out: the usage before it is not known.
    """
    with user_mistakes():
        from lab.observer import Observer

        observer = Observer(manager, (), job, credentials, timeout=_ANSWER_SECONDS)
        with contextlib.closing(observer), contextlib.closing(TraceRecorder(out)) as recorder:
            rows, why = _follow(observer, recorder, job, idle)
    click.echo(f"{why}: {rows:,} new rows in {out}")


def _follow(observer: "Observer", recorder: TraceRecorder, job: str, idle: float) -> tuple[int, str]:
    """Record until the job ends; return the number of rows, and the reason of the end in words.

    Raises:
        EvenpaceError: The job was never seen.
    """
    from rich.console import Console

    from idl.errors import ConnectionLostError, DeadlineExceededError, UnavailableError

    rows, taken = 0, 0
    latest = time.monotonic()
    with Console(stderr=True).status(f"Waiting for job {job!r}") as status:
        while True:
            try:
                known = observer.poll()
            except (ConnectionLostError, DeadlineExceededError):
                if not taken:
                    raise
                return rows, "The manager has gone"
            new = observer.iterations[taken:]
            if new:
                taken += len(new)
                rows += recorder.append(new)
                latest = time.monotonic()
                workers = len(observer.members)
                status.update(
                    f"Job {job!r}: {workers} workers, iteration {new[-1].iteration:,}, {rows:,} rows"
                )
            if taken and not (known and observer.members):
                return rows, "The job has ended"
            if time.monotonic() - latest > idle:
                if not taken:
                    raise UnavailableError(f"no iteration of job {job!r} has ended within {idle:g} s")
                return rows, f"No iteration has ended for {idle:g} s"
            time.sleep(_POLL_SECONDS)


def _write(made: Trace, out: Path) -> None:
    write_trace(made, out)
    rows = sum(len(series.iterations) for series in made.values())
    click.echo(f"{rows:,} rows of {len(made)} workers in {out}")
