"""The command line of evenpace, which reads options and leaves the work to the modules that it names."""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
from typing import Any, NoReturn

import click

from evenpace.cli.logs import log_options
from evenpace.cli.sections import SectionedGroup
from idl.errors import EvenpaceError
from idl.version import __version__

_SECTIONS = {
    "Train": {
        "demo": "lab.commands.demo:demo",
        "run": "evenpace.cli.run:run",
        "submit": "evenpace.cli.submit:submit",
        "attach": "evenpace.cli.submit:attach",
        "cluster": "evenpace.cli.cluster:cluster",
    },
    "Watch and change jobs": {
        "status": "evenpace.cli.overview:status",
        "top": "evenpace.cli.overview:top",
        "dashboard": "evenpace.cli.dashboard:dashboard",
        "report": "evenpace.cli.report:report",
        "job": "evenpace.cli.job:job",
    },
    "The parts of a cluster": {
        "manager": "evenpace.cli.services:manager",
        "ps": "evenpace.cli.services:ps",
        "worker": "evenpace.cli.services:worker",
        "partitions": "evenpace.cli.partitions:partitions",
    },
    "Check, secure and monitor a cluster": {
        "doctor": "evenpace.cli.doctor:doctor",
        "health": "evenpace.cli.health:health",
        "certs": "evenpace.cli.security:certs",
        "token": "evenpace.cli.security:token",
    },
    "Plan a job before it runs": {
        "profile": "evenpace.cli.profile:profile",
        "plan": "evenpace.cli.plan:plan",
    },
    "Measure and reproduce": {"lab": "lab.commands:lab"},
}
_EXTRAS = {
    **dict.fromkeys(("run", "manager", "ps", "partitions", "certs", "token", "doctor"), "manager"),
    **dict.fromkeys(("profile", "plan"), "manager"),
    **dict.fromkeys(("status", "top", "dashboard"), "watch"),
    **dict.fromkeys(("report", "demo", "lab"), "pages"),
    **dict.fromkeys(("submit", "attach", "cluster"), "ray"),
}
"""Extra of pyproject.toml that a command needs beyond a worker's installation, by the command's name."""

# Modules of the extra for pages that `evenpace cluster report` and `dashboard` need beyond that for Ray.
_OF_PAGES = ("anyio", "jinja2", "markupsafe", "matplotlib", "starlette", "uvicorn")


class _Group(SectionedGroup):
    """Command group that turns our own errors into one clear line and status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and print one line about an error of ours."""
        try:
            return super().invoke(ctx)
        except EvenpaceError as error:
            if ctx.params.get("debug"):
                raise
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get(ctx.invoked_subcommand or "")
            if ctx.params.get("debug") or extra is None:
                raise
            if extra == "ray" and error.name in _OF_PAGES:
                extra = "ray,pages"
            raise click.ClickException(
                f"evenpace {ctx.invoked_subcommand} needs {error.name}, which is not installed: "
                f"pip install 'evenpace[{extra}]'"
            ) from error


@click.group(
    cls=_Group,
    sections=_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, package_name="evenpace")
@click.option("--debug", is_flag=True, help="Log everything, and show where errors come from.")
@log_options
def cli(debug: bool) -> None:
    """Keep every worker of a distributed training job at an even pace.

    Start with `evenpace run` and a script of your own; in a checkout, `evenpace demo` shows what balancing
    wins. On several machines, a cluster is one `manager`, one or more `ps`, and a `worker` on each machine.
    """
    # SIGTERM must do as Ctrl-C does: stop what was started, then end.
    # Both are set: a process that a shell started in the background ignores SIGINT.
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line; the entry point."""
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        code = 130
    except SystemExit as end:  # a worker's script may say how it ends
        if not isinstance(end.code, int | None):
            raise
        code = end.code
    _leave(code or os.EX_OK)


def _leave(status: int) -> NoReturn:
    """End this process as the interpreter does, but without taking all modules down.

    That takes seconds where PyTorch is among them, for which a worker that has left would hold its device.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # what native code has printed
    os._exit(status)
