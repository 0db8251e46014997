"""Chart of the jobs on each device over time, as SVG: a bar for each time with the same devices.

It is not drawn by Matplotlib, which knows no titles of bars: a pointer over one shows its job.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple
from xml.etree import ElementTree

from evenpace.reports import numbers
from evenpace.reports.style import GREY, WorkerStyle
from lab.simulator.record import Life, Span
from scheduler.allocation import devices
from scheduler.nodes import Cluster

_WIDTH, _LEFT, _BOTTOM = 1000, 60, 24  # pixels of the time axis, and beside and below it
_HEIGHT = 400  # pixels of all devices, within these limits of each
_LEAST, _MOST = 1.5, 24.0
_TEXT = 11  # pixels
_SHADES = ("1", ".72", ".5")  # of jobs of one model, in turn
_HOURS = (0.25, 0.5, 1, 2, 4, 6, 12, 24, 48, 96, 168)  # from one label of the time axis to the next
_LABELS = 12  # on the time axis, at most


class Bar(NamedTuple):
    """A time in which a job has the same devices, and their numbers among all, ascending."""

    life: Life
    span: Span
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class _Scale:
    """Pixels of seconds and of devices."""

    end: float
    lane: float

    def x(self, seconds: float) -> str:
        return _short(_LEFT + _WIDTH * seconds / self.end)


def bars(lives: Sequence[Life], cluster: Cluster) -> list[Bar]:
    """Return the bars of all jobs by their start, with devices of a node chosen so that jobs seldom move.

    The lives say how many devices of a node a job has; it gets those that it had last, if they are free, and
    the first free ones otherwise.
    """
    of_node: dict[str, range] = {}
    free: set[int] = set()
    for node in cluster.nodes:
        of_node[node.name] = range(len(free), len(free) + node.devices)
        free.update(of_node[node.name])
    held: list[tuple[int, tuple[int, ...]]] = []  # a heap of ends, with the devices that fall free then
    last: dict[str, tuple[int, ...]] = {}
    made = []
    spans = [(life, span) for life in lives for span in life.spans]
    for job, span in sorted(spans, key=lambda its: its[1].start):
        while held and held[0][0] <= span.start:
            free.update(heappop(held)[1])
        before = set(last.get(job.name, ()))
        lanes: list[int] = []
        for name, count in span.placement:
            choice = free.intersection(of_node[name])
            lanes += [*sorted(choice & before), *sorted(choice - before)][:count]
        taken = tuple(sorted(lanes))
        free.difference_update(taken)
        heappush(held, (span.end, taken))
        last[job.name] = taken
        made.append(Bar(job, span, taken))
    return made


def gantt(
    lives: Sequence[Life], cluster: Cluster, styles: Mapping[str, WorkerStyle], end: float, alt: str
) -> str:
    """Return the chart as an SVG element for a page, in the page's colours, with a style for each model.

    From top to bottom are the devices of the nodes, in this order. The axis ends after `end` seconds, above
    0; `alt` has the content in words, for readers who cannot see the chart.
    """
    scale = _Scale(end, min(max(_HEIGHT / cluster.devices, _LEAST), _MOST))
    height = scale.lane * cluster.devices
    chart = ElementTree.Element(
        "svg",
        {
            "viewBox": f"0 0 {_LEFT + _WIDTH + 10} {_short(height + _BOTTOM)}",
            "class": "gantt",
            "role": "img",
            "aria-label": alt,
        },
    )
    models: dict[str, list[str]] = {}
    for life in lives:
        models.setdefault(life.application, []).append(life.name)
    shades = {name: _SHADES[i % len(_SHADES)] for names in models.values() for i, name in enumerate(names)}
    made = bars(lives, cluster)
    for model in models:
        group = ElementTree.SubElement(
            chart, "g", {"fill": styles[model].colour, "stroke": "var(--paper)", "stroke-width": ".3"}
        )
        for bar in made:
            if bar.life.application == model:
                d = "".join(_rectangle(bar.span, lanes, scale) for lanes in _runs(bar.lanes))
                path = ElementTree.SubElement(group, "path", {"d": d, "opacity": shades[bar.life.name]})
                ElementTree.SubElement(path, "title").text = _title(bar)
    _draw_axes(chart, cluster, scale)
    return ElementTree.tostring(chart, encoding="unicode")


def batches(life: Life, span: Span) -> list[int]:
    """Return the samples of the whole batch during a time, one after the other."""
    before = [samples for time, samples in life.batches if time <= span.start]
    return before[-1:] + [samples for time, samples in life.batches if span.start < time < span.end]


def _title(bar: Bar) -> str:
    """Return the text of a bar: its job, times, devices and batch."""
    life, span = bar.life, bar.span
    number, nodes = devices(span.placement), len(span.placement)
    sizes = batches(life, span)
    batch = f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,}"
    return (
        f"{life.name}: {number} {'device' if number == 1 else 'devices'} on {nodes} "
        f"{'node' if nodes == 1 else 'nodes'}, batch {batch}, "
        f"from {numbers.span(span.start)} to {numbers.span(span.end)}"
    )


def _runs(lanes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the number of each run of devices beside each other."""
    for _, run in groupby(enumerate(lanes), key=lambda it: it[1] - it[0]):
        members = [lane for _, lane in run]
        yield members[0], len(members)


def _rectangle(span: Span, lanes: tuple[int, int], scale: _Scale) -> str:
    first, number = lanes
    width = _WIDTH * (span.end - span.start) / scale.end
    return (
        f"M{scale.x(span.start)} {_short(first * scale.lane)}h{_short(width)}v{_short(number * scale.lane)}"
        f"h-{_short(width)}z"
    )


def _draw_axes(chart: ElementTree.Element, cluster: Cluster, scale: _Scale) -> None:
    """Draw a line below each node, nodes' names as far as there is room, and the hours."""
    height = scale.lane * cluster.devices
    lines, y, free_from = [], 0.0, 0.0
    text = ElementTree.SubElement(chart, "g", {"fill": "currentColor", "font-size": f"{_TEXT}"})
    for node in cluster.nodes:
        middle = y + node.devices * scale.lane / 2 + _TEXT / 3
        if middle - _TEXT >= free_from - _TEXT / 2:
            at = {"x": f"{_LEFT - 5}", "y": _short(middle), "text-anchor": "end"}
            ElementTree.SubElement(text, "text", at).text = node.name
            free_from = middle
        y += node.devices * scale.lane
        lines.append(f"M{_LEFT} {_short(y)}h{_WIDTH}")
    hours = scale.end / 3600
    step = next((step for step in _HOURS if hours / step <= _LABELS), hours / _LABELS)
    for i in range(int(hours / step) + 1):
        x = scale.x(3600 * step * i)
        lines.append(f"M{x} 0v{_short(height)}")
        at = {"x": x, "y": _short(height + 15), "text-anchor": "middle"}
        ElementTree.SubElement(text, "text", at).text = f"{step * i:g} h"
    attributes = {"d": "".join(lines), "stroke": GREY, "stroke-opacity": ".4", "stroke-width": ".5"}
    # Without it the lines would take the pointer from the bars.
    ElementTree.SubElement(chart, "path", {**attributes, "fill": "none", "pointer-events": "none"})


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
