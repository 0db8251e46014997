"""`evenpace run`: a whole training job on this machine, in one terminal."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.passed_on import check_command, passed_on, with_exchange
from evenpace.cli.peers import MANAGER
from evenpace.cli.settings import configured
from evenpace.local.job_config import LocalJob
from idl.errors import EvenpaceError, InvalidRequestError
from rpc.address import Address


class _Run(click.Command):
    """Command that says where a script's own options go."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; one that is not known may be the script's."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            said = f"{error.format_message()} (The script's own options come after --.)"
            raise click.UsageError(said, ctx) from error


@click.command(cls=_Run)
@example("evenpace run train.py --workers 3 --shards 2 -- --epochs 10")
@configured(LocalJob, "job")
@with_exchange
@passed_on
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(job: LocalJob, **given: Any) -> None:
    """Train with SCRIPT on this machine: a manager, a parameter server and workers in one terminal.

    All of them end with the job, with a part that fails, or by Ctrl-C. Status 0 once the job is done, 1 if a
    part failed, 130 if it was interrupted. With --restarts, a worker that fails is started again while the
    others go on; where none is left, the job begins again.
    """
    from evenpace.launch import check_script

    with user_mistakes():
        job = replace(job, **given)  # by the names of its fields
        check_script(job.script)
    check_command(("manager", *job.manager_options))
    check_command(("ps", *job.shard_options))
    check_command(("worker", *job.worker_options, str(job.script), *job.arguments), job.arguments)

    from evenpace.local import job as local_job

    lines = _Lines()
    local_job.run(job, Address.parse(MANAGER), lines, lines.conclude)


class _Lines:
    """Terminal on which a job is shown: its processes' lines on the standard output, notes on the other."""

    def __init__(self) -> None:
        from rich.console import Console

        self._out = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)

    def line(self, name: str, line: str) -> None:
        """Show a line that a process has printed."""
        from evenpace.cli.prefixed import prefixed

        self._out.print(prefixed(name, line))

    def note(self, text: str) -> None:
        """Show a line about the job."""
        from evenpace.cli.prefixed import prefixed

        self._err.print(prefixed("run", text, "bold"))

    def conclude(self, manager: Address) -> None:
        """Show how the job has ended and what balancing it has brought.

        Raises:
            InvalidRequestError: There is no job: the script has no loader of evenpace's.
        """
        from batchsize_manager.client import ManagerClient
        from evenpace.cli.overview import look
        from evenpace.cli.overview_tables import shown, sums

        try:
            with ManagerClient(manager) as client:
                jobs = look(client, None, manager).jobs
        except EvenpaceError as error:  # it may ask for a token
            self.note(f"the job has ended; how, the manager does not say: {error}")
            return
        if not jobs:
            raise InvalidRequestError(
                "no job was trained: the script has to go through a loader of evenpace, such as "
                "evenpace.torch.DataLoader"
            )
        for job in jobs.values():
            for text in sums(shown(job, 0))[:2]:
                self.note(text.plain)
