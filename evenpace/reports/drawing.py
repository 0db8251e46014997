"""Plots as parts of a page: SVG elements that take the page's text colour."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from evenpace.reports.style import INK, PANEL_SIZE, STYLE

_DIGITS = re.compile(r"-?\d+\.\d{3,}")  # of points: invisible, and half of a page's size


@dataclass(frozen=True)
class Panel:
    """One plot: its name and title, its text for readers who cannot see it, and its drawing function."""

    name: str
    title: str
    alt: str
    draw: Callable[[Axes], None]
    size: tuple[float, float] = PANEL_SIZE  # inches


def svg(panel: Panel) -> str:
    """Draw a panel as an SVG element for a page; see `inline`."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=panel.size, layout="constrained")
        axes = figure.subplots()
        axes.set_title(panel.title)
        panel.draw(axes)
        return inline(figure, panel.name, panel.alt)


def inline(figure: Figure, name: str, alt: str) -> str:
    """Return a figure as an SVG element for a page, in the page's colours.

    Args:
        figure: A figure drawn in `STYLE`.
        name: A name that no other figure of the page has; ids begin with it.
        alt: The content in words, for readers who cannot see the figure.
    """
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        content = io.BytesIO()
        figure.savefig(content, format="svg", transparent=True)
    root = ElementTree.fromstring(content.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            # The metadata are of no use on a page, and the style sheet would apply to the whole page.
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)  # HTML knows SVG's elements without a namespace
        element.attrib = {
            _local(key): _of_page(_local(key), value, name) for key, value in element.attrib.items()
        }
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": alt}
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _of_page(name: str, value: str, prefix: str) -> str:
    """Make an SVG attribute fit a page that holds other figures and has its own colour."""
    if name == "id":
        return f"{prefix}-{value}"
    if name == "href":
        return value.replace("#", f"#{prefix}-")
    if name == "d":
        return _DIGITS.sub(_shortened, value)
    return value.replace("url(#", f"url(#{prefix}-").replace(INK, "currentColor")


def _shortened(numbers: re.Match[str]) -> str:
    return f"{float(numbers[0]):.2f}".rstrip("0").rstrip(".")


def label_iterations(axes: Axes, iterations: Sequence[int]) -> None:
    """Label an x axis of iterations, with whole numbers; its range is that of all charts of `iterations`."""
    first, last = (min(iterations), max(iterations)) if iterations else (0, 0)
    margin = 0.02 * (last - first) or 0.5
    axes.set_xlim(first - margin, last + margin)
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def legend(axes: Axes) -> None:
    """Add a legend above the plot, at its right."""
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderpad=0, borderaxespad=0.4)


def marker(points: Sequence[float]) -> str:
    """Return the marker of a line: a line of a single point would be invisible without one."""
    return "o" if len(points) == 1 else ""
