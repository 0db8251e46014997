"""Page of the paper's figures, each beside the measurements of runs here."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evenpace.reports.drawing import inline
from evenpace.reports.templates import write_page
from lab.experiments.paper_claims import FIGURES, PaperFigure
from lab.plots import save
from worker.resources.device import cpu_name

_PIXELS = 100  # pixels of an inch of a figure, at most


@dataclass(frozen=True)
class ExperimentOutcome:
    """Outcome of an experiment."""

    command: str  # command line that runs it, for people
    figures: Mapping[str, Any] | None = None  # content of its JSON file; None if there is none
    why_not: str = ""  # reason why there is none, in words
    seconds: float = 0.0  # its duration
    made: float = 0.0  # when it was run, in seconds since 1970


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
        machine=_machine(),
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


def _machine() -> str:
    """Return the machine in words: its CPU and Python's version."""
    return f"{cpu_name()}, Python {platform.python_version()}"
