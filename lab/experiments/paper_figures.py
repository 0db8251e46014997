"""Run LB-BSP's table and figures, and draw all of them in one page beside what the paper says.

An experiment that was run with the same options before is not run again: whoever stops this with Ctrl-C goes
on later where it was, and has a page of what is there. One that cannot be run here (Figure 8 needs root) is
named in the page, and does not keep the others from running.

Example:
  evenpace lab experiment paper --full --only fig6,fig8
"""

import json
import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import click
from rich.console import Console

from evenpace.reports.drawing import inline
from evenpace.reports.files import write_json
from evenpace.reports.templates import write_page
from idl.errors import EvenpaceError
from idl.settings import Setting
from lab.experiments.paper_claims import FIGURES, PaperFigure
from lab.fields import parse_names
from lab.plots import save
from worker.resources.device import cpu_name

_SETTINGS = "settings.json"
_PIXELS = 100  # pixels of an inch of a figure, at most


@dataclass(frozen=True)
class FigureExperiment:
    """Experiment from which figures are drawn."""

    small: tuple[str, ...]  # its options by default: for minutes
    full: tuple[str, ...]  # its options with --full: for an hour or more
    result: str  # where its figures are, in its folder


# The sums of shares leave a part of two cores to the services.
_DISTURBED = ("--workload", "svm", "--batch-size", "4000", "--iterations", "60", "--settle", "10")
PARTS = {
    "fig6": FigureExperiment(
        ("--workloads", "digits", "--iterations", "80"),
        ("--workloads", "digits,cifarnet,resnet32"),
        "fig6.json",
    ),
    "fig8": FigureExperiment(("--iterations", "120", "--shares", "0.4,0.28,0.2,0.12"), (), "fig8.json"),
    "fig9": FigureExperiment(
        (
            *("--workloads", "svm", "--batch-size", "1000", "--iterations", "50", "--first-fit", "20"),
            *("--settle", "10", "--phases", "8", "20"),
        ),
        ("--workloads", "svm", "--batch-size", "1600"),
        "svm/report.json",
    ),
    "table3": FigureExperiment(
        (*_DISTURBED, "--first-fit", "25", "--refit-every", "20", "--phases", "8", "20"),
        ("--iterations", "600", "--first-fit", "200", "--settle", "200"),
        "report.json",
    ),
    "fig11": FigureExperiment(
        ("--iterations", "150", "--first-fit", "60", "--refit-every", "60"),
        ("--iterations", "1000"),
        "figures.json",
    ),
}


@dataclass(frozen=True)
class ExperimentOutcome:
    """Outcome of an experiment."""

    command: str  # command line that runs it, for people
    figures: Mapping[str, Any] | None = None  # content of its JSON file; None if there is none
    why_not: str = ""  # reason why there is none, in words
    seconds: float = 0.0  # its duration
    made: float = 0.0  # when it was run, in seconds since 1970


@dataclass(frozen=True)
class PaperConfig:
    """The configuration of the page."""

    full: Annotated[bool, Setting("As long as docs/figures.md has them: an hour or more.")] = False
    only: Annotated[
        tuple[str, ...],
        Setting(
            "Of these experiments. Figure 7 is drawn from fig6, Figure 10 from table3.",
            metavar="NAME,...",
            read=parse_names,
        ),
    ] = tuple(PARTS)
    again: Annotated[bool, Setting("Run also what has been run with the same options.")] = False
    changes: Annotated[
        tuple[str, ...],
        Setting(
            'More options of one experiment, such as "fig6:--data cifarnet=cifar10:DIR"; may be repeated.',
            name="set",
            metavar="NAME:OPTIONS",
        ),
    ] = ()
    out: Annotated[Path, Setting("Folder for the page, the figures, and what was measured.", folder=True)] = (
        Path("runs/paper-figures")
    )

    def __post_init__(self) -> None:
        for name in (*self.only, *(change.partition(":")[0] for change in self.changes)):
            if name not in PARTS:
                raise ValueError(f"no experiment {name!r}; there are {', '.join(PARTS)}")

    def options(self) -> dict[str, list[str]]:
        """Return the options of each experiment."""
        options = {name: list(part.full if self.full else part.small) for name, part in PARTS.items()}
        for change in self.changes:
            name, _, more = change.partition(":")
            options[name] += shlex.split(more)
        return options


def run(config: PaperConfig, console: Console) -> dict[str, Any]:
    """Run the experiments, draw the page, and return where it is."""
    options, out = config.options(), config.out
    out.mkdir(parents=True, exist_ok=True)
    try:
        for name in config.only:
            _run(name, options[name], out / name, config.again)
            _draw(config, options)  # after each: whoever stops it has a page of what is there
    except (KeyboardInterrupt, click.Abort):  # click makes the second of the first
        click.echo(f"Stopped; what is complete is in {_draw(config, options)}", err=True)
        raise
    page = _draw(config, options)
    console.print(f"Page: {page}", soft_wrap=True)
    failed = [name for name in config.only if _read(out / name).get("why_not")]
    why = {"failure": f"not measured: {', '.join(failed)}; the page says why"} if failed else {}
    return {"page": str(page), **why}


def _run(name: str, options: Sequence[str], folder: Path, again: bool) -> None:
    """Run an experiment unless that was done before, and write down its options and outcome."""
    from lab.commands import experiments  # which has this command, too

    known = _read(folder)
    if not again and known.get("options") == list(options) and not known["why_not"]:
        click.echo(f"{name}: has been run")
        return
    click.echo(f"{name}: {_command(name, options)}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _SETTINGS).unlink(missing_ok=True)  # until it is complete, it is not there
    where = ("--json", str(folder / PARTS[name].result)) if name == "fig11" else ("--out", str(folder))
    began, why_not = time.monotonic(), ""
    try:
        experiments.main([name, *options, *where], "evenpace lab experiment", standalone_mode=False)
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


def _draw(config: PaperConfig, options: dict[str, list[str]]) -> Path:
    """Draw the page of all complete experiments, also earlier ones."""
    outcomes = {}
    for name, part in PARTS.items():
        folder = config.out / name
        notes = _read(folder)
        if not notes and name not in config.only:
            continue
        command = _command(name, notes.get("options", options[name]))
        if not notes or notes["why_not"]:
            why_not = notes.get("why_not") or "it has not been run to its end"
            outcomes[name] = ExperimentOutcome(command, None, why_not)
            continue
        figures = json.loads((folder / part.result).read_text())
        outcomes[name] = ExperimentOutcome(command, figures, "", notes["seconds"], notes["made"])
    settings = "settings as in docs/figures.md" if config.full else "small settings, to end within minutes"
    return write(outcomes, config.out, settings)


def _command(name: str, options: Sequence[str]) -> str:
    return " ".join(("evenpace lab experiment", name, *options))


def _read(folder: Path) -> dict[str, Any]:
    """Return the options and the outcome of a complete experiment; empty if there is none."""
    try:
        notes: dict[str, Any] = json.loads((folder / _SETTINGS).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return notes


def write(outcomes: Mapping[str, ExperimentOutcome], folder: Path, settings: str) -> Path:
    """Write index.html, and each figure as SVG and PNG; return the page's path.

    Figures whose part is not among the outcomes are left out; the settings of the runs are in words.
    """
    sections = [
        _section(figure, outcomes[figure.part], folder) for figure in FIGURES if figure.part in outcomes
    ]
    page = folder / "index.html"
    write_page(
        "paper.html.j2",
        page,
        sections=sections,
        settings=settings,
        machine=f"{cpu_name()}, Python {platform.python_version()}",
        cores=os.cpu_count(),
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}",
    )
    return page


def _section(figure: PaperFigure, outcome: ExperimentOutcome, folder: Path) -> dict[str, Any]:
    claims, drawing, width, files = [], None, 0, []
    if outcome.figures is not None:
        claims = figure.claims(outcome.figures)
        drawn = figure.draw(outcome.figures)
        if drawn is not None:
            here = "; ".join(f"{claim.what}: {claim.here}" for claim in claims)
            drawing = inline(drawn, figure.name, f"{figure.title}, as measured here. {here}.")
            width = round(float(drawn.get_size_inches()[0]) * _PIXELS)
            files = [f"{figure.name}.{kind}" for kind in ("svg", "png")]
            for name in files:
                save(drawn, folder / name)
    load = (outcome.figures or {}).get("load_average")  # a number, or those before and after
    return {
        "figure": figure,
        "outcome": outcome,
        "claims": claims,
        "drawing": drawing,
        "width": width,
        "files": files,
        "made": f"{datetime.fromtimestamp(outcome.made, UTC):%Y-%m-%d %H:%M UTC}" if outcome.made else "",
        "load": load[-1] if isinstance(load, list) else load,
    }
