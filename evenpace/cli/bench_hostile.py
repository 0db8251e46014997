"""`evenpace bench hostile`: live services under attack."""

from pathlib import Path

import click

from evenpace.cli.options import example, json_path, user_mistakes


@click.command("hostile")
@example("evenpace bench hostile --minutes 10 --inputs 1000000 --seed 1 --json hostile.json")
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="At most."
)
@click.option("--seconds", type=click.FloatRange(1), default=None, help="In place of minutes.")
@click.option("--inputs", type=click.IntRange(1), default=None, help="At most.  [default: no limit]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of all that is thrown.")
@click.option(
    "--tokens/--no-tokens",
    default=True,
    show_default=True,
    help="Let the services ask for tokens; without, attackers leave the honest job's name alone.",
)
@json_path
def bench_hostile(
    minutes: float,
    seconds: float | None,
    inputs: int | None,
    seed: int,
    tokens: bool,
    json_path: Path | None,
) -> None:
    """Attack a live manager and a live shard while an honest job trains on them.

    Told are the inputs tried and the harm done: crashes, hangs, memory that grows, and changed bits of the
    honest job's parameters, which are compared with those of an undisturbed run. The status is 1 where
    there was any.
    """
    with user_mistakes():
        from evenpace.lab.attacks.attack import HostileConfig, run

        figures = run(
            HostileConfig(seconds if seconds is not None else 60 * minutes, inputs, seed, tokens=tokens),
            json_path,
        )
    if figures["harms"] or figures["honest"]["bits_changed"] != 0:
        raise click.ClickException("harm was done")
