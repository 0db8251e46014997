"""The style of plots: colours, sizes, Matplotlib's settings."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's colours, which the colour-blind can distinguish; the four with enough contrast on both
# white and black come first. Dashes distinguish more workers than there are colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("", "5 2", "1.5 1.5", "5 2 1.5 2")
# Colours are for workers, shades for the whole job. On a page, INK becomes the text's own colour.
INK = "#222222"
GREY = "#8c8c8c"
SHADES = (INK, GREY)
# Of the parts of a worker's time, on white and on black; no worker's, either.
PARTS = {"computing": "#5f7fa6", "communicating": "#6fa893", "waiting": "#d6983f"}

PANEL_SIZE = (5.2, 2.9)  # inches; as points about a phone's width, so that text keeps its size
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.1,
    "font.size": 9.5,
    "grid.alpha": 0.3,
    "grid.color": GREY,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.7,
    "svg.fonttype": "none",  # text stays text: readable aloud, searchable, small
    "text.color": INK,
    "text.parse_math": False,  # a worker's name may hold a $
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.color": GREY,
    "ytick.labelcolor": INK,
}


@dataclass(frozen=True)
class WorkerStyle:
    """The style of one worker's lines: a colour, and dashes as in SVG's stroke-dasharray."""

    colour: str
    dash: str

    @property
    def line(self) -> dict[str, Any]:
        """The style as Matplotlib's line properties."""
        dashes = (0.0, tuple(map(float, self.dash.split())))
        return {"color": self.colour, "linestyle": dashes if self.dash else "solid"}


def worker_styles(workers: Iterable[str]) -> dict[str, WorkerStyle]:
    """Return a style for each worker, in their order."""
    styles = {}
    for index, worker in enumerate(workers):
        round_, colour = divmod(index, len(COLOURS))
        styles[worker] = WorkerStyle(COLOURS[colour], DASHES[round_ % len(DASHES)])
    return styles
