"""The command line of evenpace, which reads options and leaves the work to the modules that it names."""

import os
import signal
import sys
from typing import Any

import click

from evenpace.cli.dashboard import dashboard
from evenpace.cli.demo import demo
from evenpace.cli.doctor import doctor
from evenpace.cli.health import health
from evenpace.cli.job import job
from evenpace.cli.lab import lab
from evenpace.cli.logs import log_options
from evenpace.cli.metrics import metrics
from evenpace.cli.overview import status, top
from evenpace.cli.partitions import partitions
from evenpace.cli.plan import plan
from evenpace.cli.profile import profile
from evenpace.cli.report import report
from evenpace.cli.run import run
from evenpace.cli.sections import SectionedGroup
from evenpace.cli.security import certs, token
from evenpace.cli.services import manager, ps, worker
from evenpace.cli.submit import attach, submit
from idl.errors import EvenpaceError
from idl.version import __version__

_EXTRAS = {
    **dict.fromkeys(("run", "manager", "ps", "partitions", "certs", "token", "doctor", "metrics"), "manager"),
    **dict.fromkeys(("status", "top", "dashboard"), "watch"),
    "report": "pages",
    **dict.fromkeys(("submit", "attach"), "ray"),
    **dict.fromkeys(("demo", "profile", "plan", "lab", *lab.commands), "lab"),
}
"""Extra of pyproject.toml that a command needs beyond a worker's installation, by the command's name."""


class _Group(SectionedGroup):
    """Command group that turns our own errors into one clear line and status 1.

    Commands of the lab are known by their own names as well, which they had before there was `evenpace lab`.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, by its name or one that it had before."""
        return super().get_command(ctx, cmd_name) or lab.get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is to run, and say what a name that it had before is from now on."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in lab.commands and name not in self.commands:
            click.echo(f"`evenpace {name}` is now `evenpace lab {name}`; the next version lacks it", err=True)
        return name, command, rest

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
            raise click.ClickException(
                f"evenpace {ctx.invoked_subcommand} needs {error.name}, which is not installed: "
                f"pip install 'evenpace[{extra}]'"
            ) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, package_name="evenpace")
@click.option("--debug", is_flag=True, help="Log everything, and show where errors come from.")
@log_options
def cli(debug: bool) -> None:
    """Keep every worker of a distributed training job at an even pace.

    Start with `evenpace demo`, then `evenpace run` with a script of your own. On several machines, a cluster
    is one `manager`, one or more `ps`, and a `worker` on each machine.
    """
    # SIGTERM must do as Ctrl-C does: stop what was started, then end.
    # Both are set: a process that a shell started in the background ignores SIGINT.
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


cli.add_section("Train", demo, run, submit, attach)
cli.add_section("Watch and change jobs", status, top, dashboard, report, job)
cli.add_section("The parts of a cluster", manager, ps, worker, partitions)
cli.add_section("Check, secure and monitor a cluster", doctor, health, metrics, certs, token)
cli.add_section("Plan a job before it runs", profile, plan)
cli.add_section("Measure and reproduce", lab)


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
    sys.stdout.flush()
    sys.exit(code or os.EX_OK)
