"""`evenpace profile`: a script's step times on this device."""

from pathlib import Path

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.settings import configured
from evenpace.local.profile_config import ProfileConfig
from idl.errors import EvenpaceError


@click.command(context_settings={"allow_interspersed_args": False})
@example("evenpace profile --out profiles/v100.json train.py --epochs 10")
@configured(ProfileConfig, "config")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Write the profile here."
)
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def profile(config: ProfileConfig, out: Path, script: Path, arguments: tuple[str, ...]) -> None:
    """Measure how long a script's steps take on this device, by batch size.

    SCRIPT is trained as the only worker of a manager and a parameter server that run for as long. Its batch
    is changed from one power of two to the next, and to the midpoints between them, until no larger one
    fits; then it is ended. If it ends before, it is started again. `evenpace plan` and `evenpace manager
    --profiles` read the file.
    """
    from rich.console import Console

    from evenpace.launch import check_script
    from evenpace.local.profiling import profile
    from evenpace.local.terminal import make_progress, make_table
    from evenpace.reports import files

    console = Console()
    with user_mistakes():
        check_script(script)
        files.check_room(out)
        with make_progress(console, transient=True) as bar:
            task = bar.add_task("starting", total=config.steps)

            def show(size: int, steps: int) -> None:
                bar.update(task, description=f"{size} samples", completed=steps)

            measured, ended = profile(script, arguments, config, show)
    table = make_table(
        f"{measured.script} on {measured.device}", "samples", "seconds", "spread", "per second"
    )
    for step in measured.steps:
        rate = step.batch_size / step.seconds
        table.add_row(str(step.batch_size), f"{step.seconds:.4g}", f"{step.spread:.2g}", f"{rate:.4g}")
    console.print(table)
    console.print(f"No larger batch: {ended}.")
    try:
        files.write_json(measured.content(), out)
    except OSError as error:
        raise EvenpaceError(f"the profile above is written nowhere else: {error}") from error
    console.print(f"Profile: {out}")
