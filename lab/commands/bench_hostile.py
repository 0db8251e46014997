"""`evenpace lab bench hostile`: live services under attack."""

from pathlib import Path

import click

from evenpace.cli.options import example, json_path, user_mistakes
from evenpace.cli.settings import configured
from lab.attacks.config import HostileConfig
from lab.commands.options import in_minutes


@click.command("hostile")
@example("evenpace lab bench hostile --minutes 10 --inputs 1000000 --seed 1 --json hostile.json")
@in_minutes("At most.")
@configured(HostileConfig, "config", seconds=None)
@json_path
def bench_hostile(config: HostileConfig, json_path: Path | None) -> None:
    """Attack a live manager and a live shard while an honest job trains on them.

    Told are the inputs tried and the harm done: crashes, hangs, memory that grows, and changed bits of the
    honest job's parameters, which are compared with those of an undisturbed run. The status is 1 where
    there was any.
    """
    with user_mistakes():
        from lab.attacks.attack import run

        figures = run(config, json_path)
    if figures["harms"] or figures["honest"]["bits_changed"] != 0:
        raise click.ClickException("harm was done")
