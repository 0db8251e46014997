"""`evenpace lab experiment paper`: the paper's table and figures, all of them, in one page."""

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from evenpace.cli.options import example, user_mistakes
from idl.errors import EvenpaceError
from lab.commands.experiment import fig9, fig11, table3
from lab.commands.unequal_figures import fig6, fig8

_SETTINGS = "settings.json"
_FIGURES = "figures.json"


@dataclass(frozen=True)
class FigureExperiment:
    """Experiment from which figures are drawn."""

    command: click.Command  # subcommand of `evenpace lab experiment`
    small: tuple[str, ...]  # its options by default: for minutes
    full: tuple[str, ...]  # its options with --full: for an hour or more
    result: str = ""  # where its figures are, in its folder; empty if they go where --json says


# The sums of shares leave a part of two cores to the services.
_DISTURBED = ("--workload", "svm", "--batch-size", "4000", "--iterations", "60", "--settle", "10")
PARTS = {
    "fig6": FigureExperiment(
        fig6,
        ("--workloads", "digits", "--iterations", "80"),
        ("--workloads", "digits,cifarnet,resnet32"),
    ),
    "fig8": FigureExperiment(fig8, ("--iterations", "120", "--shares", "0.4,0.28,0.2,0.12"), ()),
    "fig9": FigureExperiment(
        fig9,
        (
            *("--workloads", "svm", "--batch-size", "1000", "--iterations", "50", "--first-fit", "20"),
            *("--settle", "10", "--phases", "8", "20"),
        ),
        ("--workloads", "svm", "--batch-size", "1600"),
        "svm/report.json",
    ),
    "table3": FigureExperiment(
        table3,
        (*_DISTURBED, "--first-fit", "25", "--refit-every", "20", "--phases", "8", "20"),
        ("--iterations", "600", "--first-fit", "200", "--settle", "200"),
        "report.json",
    ),
    "fig11": FigureExperiment(
        fig11, ("--iterations", "150", "--first-fit", "60", "--refit-every", "60"), ("--iterations", "1000")
    ),
}


@click.command("paper")
@example("evenpace lab experiment paper --full --only fig6,fig8")
@click.option("--full", is_flag=True, help="As long as docs/figures.md has them: an hour or more.")
@click.option(
    "--only",
    default=",".join(PARTS),
    show_default=True,
    metavar="NAME,...",
    help="Of these experiments. Figure 7 is drawn from fig6, Figure 10 from table3.",
)
@click.option("--again", is_flag=True, help="Run also what has been run with the same options.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME:OPTIONS",
    help='More options of one experiment, such as "fig6:--data cifarnet=cifar10:DIR"; may be repeated.',
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/paper-figures"),
    show_default=True,
    help="Folder for the page, the figures, and what was measured.",
)
def paper_figures(full: bool, only: str, again: bool, changes: tuple[str, ...], out: Path) -> None:
    """Run LB-BSP's table and figures, and draw all of them in one page beside what the paper says.

    An experiment that was run with the same options before is not run again: whoever stops this with Ctrl-C
    goes on later where it was, and has a page of what is there. One that cannot be run here (Figure 8 needs
    root) is named in the page, and does not keep the others from running.
    """
    names = only.split(",")
    options = {name: list(part.full if full else part.small) for name, part in PARTS.items()}
    with user_mistakes():
        for name in names:
            _known(name)
        for change in changes:
            name, _, more = change.partition(":")
            _known(name)
            options[name] += shlex.split(more)
        out.mkdir(parents=True, exist_ok=True)
    settings = "settings as in docs/figures.md" if full else "small settings, to end within minutes"
    try:
        for name in names:
            _run(name, options[name], out / name, again)
            _draw(out, options, names, settings)  # after each: whoever stops it has a page of what is there
    except (KeyboardInterrupt, click.Abort):  # click makes the second of the first
        click.echo(f"Stopped; what is complete is in {_draw(out, options, names, settings)}", err=True)
        raise
    page = _draw(out, options, names, settings)
    click.echo(f"Page: {page}")
    failed = [
        name for name in names if (out / name / _SETTINGS).exists() and _read(out / name).get("why_not")
    ]
    if failed:
        raise click.ClickException(f"not measured: {', '.join(failed)}; the page says why")


def _run(name: str, options: Sequence[str], folder: Path, again: bool) -> None:
    """Run an experiment unless that was done before, and write down its options and outcome."""
    from evenpace.reports.files import write_json

    part = PARTS[name]
    known = _read(folder)
    if not again and known.get("options") == list(options) and not known["why_not"]:
        click.echo(f"{name}: has been run")
        return
    click.echo(f"{name}: evenpace lab experiment {part.command.name} {' '.join(options)}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _SETTINGS).unlink(missing_ok=True)  # until it is complete, it is not there
    where = () if part.command is fig11 else ("--out", str(folder))
    json_option = () if part.result else ("--json", str(folder / _FIGURES))
    began, why_not = time.monotonic(), ""
    try:
        part.command.main(
            [*options, *where, *json_option], f"evenpace lab experiment {name}", standalone_mode=False
        )
    except (EvenpaceError, OSError) as error:
        why_not = str(error)
        click.echo(f"{name}: not measured: {why_not}", err=True)
    notes = {
        "options": list(options),
        "why_not": why_not,
        "seconds": time.monotonic() - began,
        "made": time.time(),
    }
    write_json(notes, folder / _SETTINGS)


def _draw(out: Path, options: dict[str, list[str]], names: Sequence[str], settings: str) -> Path:
    """Draw the page of all complete experiments, also earlier ones."""
    from lab.experiments.paper_page import ExperimentOutcome, write

    outcomes = {}
    for name, part in PARTS.items():
        notes = _read(out / name)
        if not notes and name not in names:
            continue
        given = notes.get("options", options[name])
        command = f"evenpace lab experiment {part.command.name} {' '.join(given)}".strip()
        if not notes or notes["why_not"]:
            outcomes[name] = ExperimentOutcome(
                command, None, notes.get("why_not") or "it has not been run to its end"
            )
            continue
        figures = json.loads((out / name / (part.result or _FIGURES)).read_text())
        outcomes[name] = ExperimentOutcome(command, figures, "", notes["seconds"], notes["made"])
    return write(outcomes, out, settings)


def _read(folder: Path) -> dict[str, Any]:
    """Return the options and the outcome of a complete experiment; empty if there is none."""
    try:
        notes: dict[str, Any] = json.loads((folder / _SETTINGS).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return notes


def _known(name: str) -> None:
    if name not in PARTS:
        raise ValueError(f"no experiment {name!r}; there are {', '.join(PARTS)}")
