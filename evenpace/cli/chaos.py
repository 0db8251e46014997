"""`evenpace chaos`: training under faults."""

import sys
from pathlib import Path

import click

from evenpace.cli.options import example, json_path, user_mistakes
from evenpace.lab.chaos.schedule import KINDS


@click.command()
@example("evenpace chaos --minutes 2 --seed 1 --json chaos.json")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="For which faults come.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the faults.")
@json_path
@click.option(
    "--faults",
    default=None,
    metavar="KIND,...",
    help=f"Kinds that come, each of which must fire: {', '.join(KINDS)}.  [default: all that can here]",
)
@click.option("--workers", type=click.IntRange(1, 32), default=5, show_default=True, help="Of each job.")
@click.option(
    "--shards", type=click.IntRange(1, 8), default=2, show_default=True, help="Of the parameter server."
)
@click.option(
    "--link-mib",
    type=click.FloatRange(0, min_open=True),
    default=3.0,
    show_default=True,
    help="MiB per second that each of a worker's connections carries, either way. A push is of 0.3 MiB, "
    "shared among the shards, and so is a pull.",
)
@click.option(
    "--lookahead", type=click.IntRange(0), default=0, show_default=True, help="See `evenpace manager`."
)
@click.option("--jobs", type=click.IntRange(1, 8), default=1, show_default=True, help="That train at once.")
@click.option(
    "--deterministic",
    is_flag=True,
    help="Let faults befall the manager and the links to shards only: the final parameters must have the "
    "bits of a run without faults, which follows.",
)
def chaos(
    minutes: float,
    seed: int,
    json_path: Path | None,
    faults: str | None,
    workers: int,
    shards: int,
    link_mib: float,
    lookahead: int,
    jobs: int,
    deterministic: bool,
) -> None:
    """Train on a local cluster while its parts are killed, frozen, cut off, lied to and impersonated.

    What shards, manager and workers have written down must then show that nothing was lost, and of each kind
    of fault at least one must have fired. Status 1 if not; the folder with all of it is kept then. Full disks
    need root, clocks that jump need libfaketime; where these are missing, they are left out and that is said,
    unless --faults names them: then there is no run. No fault is meant to last for more than an eighth of
    the run, but for the seconds that its kind needs.
    """
    with user_mistakes():
        from evenpace.lab.chaos.run import run
        from evenpace.lab.chaos.settings import Settings

        kinds = tuple(faults.split(",")) if faults is not None else None
        settings = Settings(minutes, seed, kinds, workers, shards, link_mib, lookahead, jobs, deterministic)
    if not run(settings, json_path):
        sys.exit(1)
