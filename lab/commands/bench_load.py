"""`evenpace lab bench load`: the manager under the load of many jobs."""

import os
from dataclasses import replace
from pathlib import Path

import click

from evenpace.cli.options import example, json_path, user_mistakes
from evenpace.cli.settings import configured, option
from lab.bench.config import LoadConfig
from lab.commands.options import in_minutes


@click.command("load")
@example("evenpace lab bench load --jobs 10 --workers 100 --minutes 10 --json load.json")
@in_minutes()
@configured(LoadConfig, "config", without=("generators",), seconds=None)
@option(LoadConfig, "generators", None)
@json_path
def bench_load(config: LoadConfig, generators: int | None, json_path: Path | None) -> None:
    """Run many jobs with many workers each against one manager.

    Each worker has a connection and reports each iteration; what it would compute is made up. Measured are
    the barrier rounds, from the last report sent to the last answer received, and what the manager takes of
    the machine. At the end, one job, member and connection too many are tried.
    """
    with user_mistakes():
        from lab.bench.load_benchmark import run

        most = min(config.workers, max(1, (os.cpu_count() or 1) - 1))
        run(replace(config, generators=generators or most), json_path)
