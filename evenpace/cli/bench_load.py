"""`evenpace bench load`: the manager under the load of many jobs."""

import os
from pathlib import Path

import click

from evenpace.cli.options import example, json_path, user_mistakes


@click.command("load")
@example("evenpace bench load --jobs 10 --workers 100 --minutes 10 --json load.json")
@click.option("--jobs", type=click.IntRange(1), default=10, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=100, show_default=True, help="Of each job.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=None, help="In place of minutes.")
@click.option(
    "--compute",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Seconds from an answer to the next report; 0: at once, so that the manager is never idle.",
)
@click.option(
    "--generators",
    type=click.IntRange(1),
    default=None,
    help="Processes that the workers are spread over.  [default: one less than there are CPUs]",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the workers' speeds.")
@json_path
@click.option(
    "--plot", "plot_path", type=click.Path(path_type=Path), default=None, help="Draw a picture, a PNG file."
)
def bench_load(
    jobs: int,
    workers: int,
    minutes: float,
    seconds: float | None,
    compute: float,
    generators: int | None,
    seed: int,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Run many jobs with many workers each against one manager.

    Each worker has a connection and reports each iteration; what it would compute is made up. Measured are
    the barrier rounds, from the last report sent to the last answer received, and what the manager takes of
    the machine. At the end, one job, member and connection too many are tried.
    """
    with user_mistakes():
        from evenpace.lab.bench.load_benchmark import run
        from evenpace.lab.bench.load_generators import LoadConfig

        run(
            LoadConfig(
                jobs,
                workers,
                seconds if seconds is not None else 60 * minutes,
                compute,
                generators or min(workers, max(1, (os.cpu_count() or 1) - 1)),
                seed,
            ),
            json_path,
            plot_path,
        )
