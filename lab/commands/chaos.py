"""`evenpace lab chaos`: training under faults."""

import sys
from pathlib import Path

import click
from click.core import ParameterSource

from evenpace.cli.options import example, json_path
from evenpace.cli.sections import LongCommand
from evenpace.cli.settings import configured
from lab.chaos.config import ChaosConfig


@click.command(
    cls=LongCommand,
    common=("minutes", "seed", "workers", "shards", "with", "jobs", "deterministic", "exact", "json_path"),
)
@example("evenpace lab chaos --minutes 2 --seed 1 --json chaos.json")
@configured(ChaosConfig, "settings")
@json_path
@click.pass_context
def chaos(context: click.Context, settings: ChaosConfig, json_path: Path | None) -> None:
    """Train on a local cluster while its parts are killed, frozen, cut off, damaged and impersonated.

    What shards, manager and workers have written down must then show that nothing was lost, and of each kind
    of fault at least one must have fired. Status 1 if not; the folder with all of it is kept then. Full disks
    need root, writes that fail a C compiler, clocks that jump libfaketime, packets lost between ranks root
    and nftables; where these are missing, they are left out and that is said, unless --faults names them:
    then there is no run. No fault is meant to last for more than an eighth of the run, but for the seconds
    that its kind needs.

    With all-reduce, workers form groups that the manager decides on, without shards; they join and are
    drained as well, and some worker that has the job's state is always left alive.
    """
    has_shards = context.get_parameter_source("shards") is ParameterSource.COMMANDLINE
    if settings.exchange == "all-reduce" and has_shards:
        raise click.UsageError("--shards: has no meaning with all-reduce")
    from lab.chaos.chaos_run import run

    if not run(settings, json_path):
        sys.exit(1)
