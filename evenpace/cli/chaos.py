"""`evenpace chaos`: training under faults."""

import sys
from pathlib import Path

import click

from evenpace.cli.options import example, json_path
from evenpace.cli.settings import configured
from evenpace.lab.chaos.config import ChaosConfig


@click.command()
@example("evenpace lab chaos --minutes 2 --seed 1 --json chaos.json")
@configured(ChaosConfig, "settings")
@json_path
def chaos(settings: ChaosConfig, json_path: Path | None) -> None:
    """Train on a local cluster while its parts are killed, frozen, cut off, lied to and impersonated.

    What shards, manager and workers have written down must then show that nothing was lost, and of each kind
    of fault at least one must have fired. Status 1 if not; the folder with all of it is kept then. Full disks
    need root, clocks that jump need libfaketime; where these are missing, they are left out and that is said,
    unless --faults names them: then there is no run. No fault is meant to last for more than an eighth of
    the run, but for the seconds that its kind needs.
    """
    from evenpace.lab.chaos.chaos_run import run

    if not run(settings, json_path):
        sys.exit(1)
