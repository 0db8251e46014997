"""`evenpace lab simulate`: jobs on a cluster under scheduling policies, from measurements."""

from pathlib import Path

import click

from evenpace.cli.options import example, json_path, user_mistakes
from evenpace.cli.sections import LongCommand
from evenpace.cli.settings import configured
from lab.simulations.config import SimulationConfig


@click.command(
    cls=LongCommand,
    common=(
        *("workload", "policy", "traces", "cluster", "rules", "capacity", "seed", "jobs"),
        *("json_path", "page_path"),
    ),
)
@example(
    "evenpace lab simulate --workload workloads --policy tiresias --traces pollux --page simulations.html"
)
@configured(SimulationConfig, "config")
@json_path
@click.option(
    "--page",
    "page_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Show jobs and devices over time on a page, an HTML file.",
)
def simulate(config: SimulationConfig, json_path: Path | None, page_path: Path | None) -> None:
    """Simulate jobs on a cluster under scheduling policies; nothing is trained.

    Jobs train with step times and gradient noise that were measured. Where the file of --json has the result
    of a simulation of the same files and settings, it is taken from there. Published figures are shown where
    pollux-published.csv or heterogeneous-published.csv lies beside a workload's folder.

    The policies sia and gavel serve clusters of several kinds of devices, too: --cluster
    aws=6x4,dgx-ext=2x8,rtx=3x8 --rules mixed is the published one.

    rho is finish-time fairness: a job's completion time over that on a cluster of its own with the job's fair
    share of the devices.
    """
    from rich.console import Console

    from lab.simulations.run import run

    with user_mistakes():
        run(config, Console(), json_path, page_path)
