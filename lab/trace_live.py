"""Record the workers' speeds of a job that runs, as a trace."""

import contextlib
import time
from pathlib import Path

import click
from rich.console import Console

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.peers import as_client
from evenpace.cli.settings import option
from idl.errors import ConnectionLostError, DeadlineExceededError, UnavailableError
from lab.observer import Observer
from lab.traces import TraceRecorder
from rpc.credentials import Credentials
from rpc.places import Where
from worker.config import SessionConfig

_POLL_SECONDS = 0.5  # seconds between two looks at the job
_IDLE_SECONDS = 300.0  # seconds without a new iteration after which to stop
_ANSWER_SECONDS = 10.0  # seconds in which the manager must answer each


@click.command("live")
@example("evenpace lab trace live --manager 10.0.0.1:4300 --out trace.csv")
@option(SessionConfig, "manager")
@option(SessionConfig, "job")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The trace, a CSV file."
)
@as_client
def trace_live(manager: Where, job: str, out: Path, credentials: Credentials | None) -> None:
    """Record a job, until it ends: one that is running, is about to start, or has just ended.

    It also stops where no iteration has ended for five minutes.

    A file that is there is continued if it has the same run of the job, so the command may be stopped and
    started again. A worker's first iteration is left out: the usage before it is not known.
    """
    with user_mistakes():
        observer = Observer(manager, (), job, credentials, timeout=_ANSWER_SECONDS)
        with contextlib.closing(observer), contextlib.closing(TraceRecorder(out)) as recorder:
            rows, why = _follow(observer, recorder, job)
    click.echo(f"{why}: {rows:,} new rows in {out}")


def _follow(observer: Observer, recorder: TraceRecorder, job: str) -> tuple[int, str]:
    """Record until the job ends; return the number of rows, and the reason of the end in words."""
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
            if time.monotonic() - latest > _IDLE_SECONDS:
                if not taken:
                    raise UnavailableError(
                        f"no iteration of job {job!r} has ended within {_IDLE_SECONDS:g} s"
                    )
                return rows, f"No iteration has ended for {_IDLE_SECONDS:g} s"
            time.sleep(_POLL_SECONDS)
