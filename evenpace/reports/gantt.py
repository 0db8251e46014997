"""Chart of the jobs on each device over time, as SVG: a bar for each time with the same devices.

It is not drawn by Matplotlib, which knows no titles of bars: a pointer over one shows its job.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple
from xml.etree import ElementTree

from evenpace.reports import numbers
from evenpace.reports.style import GREY, WorkerStyle
from scheduler.allocation import Placement
from scheduler.nodes import Cluster

_WIDTH, _LEFT, _BOTTOM = 1000, 95, 24  # pixels of the time axis, and beside and below it
_HEIGHT = 400  # pixels of all devices, within these limits of each
_LEAST, _MOST = 1.5, 24.0
_TEXT = 11  # pixels
_SHADES = ("1", ".72", ".5")  # of jobs of one group, in turn
# Seconds from one label of the time axis to the next.
_STEPS = (
    1,
    2,
    5,
    10,
    30,
    60,
    120,
    300,
    *(3600 * hours for hours in (0.25, 0.5, 1, 2, 4, 6, 12, 24, 48, 96, 168)),
)
_LABELS = 12  # on the time axis, at most
_EDGE = 0.03  # share of the axis at its end, where labels end


class Had(NamedTuple):
    """A time, in seconds from the start of the chart, in which a job has the same devices."""

    job: str
    group: str  # of jobs of one colour
    start: float
    end: float
    placement: Placement
    title: str


class Bar(NamedTuple):
    """A time in which a job has the same devices, and their numbers among all, ascending."""

    had: Had
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class _Scale:
    """Pixels of seconds and of devices."""

    end: float
    lane: float

    def x(self, seconds: float) -> str:
        return _short(_LEFT + _WIDTH * seconds / self.end)


def bars(times: Iterable[Had], cluster: Cluster) -> list[Bar]:
    """Return the bars of all jobs by their start, with devices of a node chosen so that jobs seldom move.

    What is given says how many devices of a node a job has; it gets those that it had last, if they are free,
    and the first free ones otherwise.
    """
    of_node: dict[str, range] = {}
    free: set[int] = set()
    for node in cluster.nodes:
        of_node[node.name] = range(len(free), len(free) + node.devices)
        free.update(of_node[node.name])
    held: list[tuple[float, tuple[int, ...]]] = []  # a heap of ends, with the devices that fall free then
    last: dict[str, tuple[int, ...]] = {}
    made = []
    for had in sorted(times, key=lambda its: its.start):
        while held and held[0][0] <= had.start:
            free.update(heappop(held)[1])
        before = set(last.get(had.job, ()))
        lanes: list[int] = []
        for name, count in had.placement:
            choice = free.intersection(of_node[name])
            lanes += [*sorted(choice & before), *sorted(choice - before)][:count]
        taken = tuple(sorted(lanes))
        free.difference_update(taken)
        heappush(held, (had.end, taken))
        last[had.job] = taken
        made.append(Bar(had, taken))
    return made


def gantt(
    times: Sequence[Had],
    cluster: Cluster,
    styles: Mapping[str, WorkerStyle],
    end: float,
    alt: str,
    labels: Mapping[str, str] | None = None,
) -> str:
    """Return the chart as an SVG element for a page, in the page's colours, with a style for each group.

    From top to bottom are the devices of the nodes, in this order. The axis ends after `end` seconds, above
    0; `alt` has the content in words, for readers who cannot see the chart; `labels` are nodes' names for
    readers, where they differ.
    """
    scale = _Scale(end, min(max(_HEIGHT / max(cluster.devices, 1), _LEAST), _MOST))
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
    groups: dict[str, dict[str, None]] = {}
    for had in times:
        groups.setdefault(had.group, {})[had.job] = None
    shades = {name: _SHADES[i % len(_SHADES)] for names in groups.values() for i, name in enumerate(names)}
    made = bars(times, cluster)
    for name in groups:
        group = ElementTree.SubElement(
            chart, "g", {"fill": styles[name].colour, "stroke": "var(--paper)", "stroke-width": ".3"}
        )
        for bar in made:
            if bar.had.group == name:
                d = "".join(_rectangle(bar.had, lanes, scale) for lanes in _runs(bar.lanes))
                path = ElementTree.SubElement(group, "path", {"d": d, "opacity": shades[bar.had.job]})
                ElementTree.SubElement(path, "title").text = bar.had.title
    _draw_axes(chart, cluster, scale, labels or {})
    return ElementTree.tostring(chart, encoding="unicode")


def _runs(lanes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the number of each run of devices beside each other."""
    for _, run in groupby(enumerate(lanes), key=lambda it: it[1] - it[0]):
        members = [lane for _, lane in run]
        yield members[0], len(members)


def _rectangle(had: Had, lanes: tuple[int, int], scale: _Scale) -> str:
    first, number = lanes
    width = _WIDTH * (had.end - had.start) / scale.end
    return (
        f"M{scale.x(had.start)} {_short(first * scale.lane)}h{_short(width)}v{_short(number * scale.lane)}"
        f"h-{_short(width)}z"
    )


def _draw_axes(
    chart: ElementTree.Element, cluster: Cluster, scale: _Scale, labels: Mapping[str, str]
) -> None:
    """Draw a line below each node, nodes' names as far as there is room, and the time."""
    height = scale.lane * cluster.devices
    lines, y, free_from = [], 0.0, 0.0
    text = ElementTree.SubElement(chart, "g", {"fill": "currentColor", "font-size": f"{_TEXT}"})
    for node in cluster.nodes:
        middle = y + node.devices * scale.lane / 2 + _TEXT / 3
        if middle - _TEXT >= free_from - _TEXT / 2:
            at = {"x": f"{_LEFT - 5}", "y": _short(middle), "text-anchor": "end"}
            ElementTree.SubElement(text, "text", at).text = labels.get(node.name, node.name)
            free_from = middle
        y += node.devices * scale.lane
        lines.append(f"M{_LEFT} {_short(y)}h{_WIDTH}")
    step = next((step for step in _STEPS if scale.end / step <= _LABELS), scale.end / _LABELS)
    for i in range(int(scale.end / step) + 1):
        x = scale.x(step * i)
        lines.append(f"M{x} 0v{_short(height)}")
        at_edge = step * i > (1 - _EDGE) * scale.end  # half of the label would be cut off
        at = {"x": x, "y": _short(height + 15), "text-anchor": "end" if at_edge else "middle"}
        ElementTree.SubElement(text, "text", at).text = numbers.span(step * i) if i else "0"
    # Without pointer events, or the lines would take the pointer from the bars.
    attributes = {"d": "".join(lines), "stroke": GREY, "stroke-opacity": ".4", "stroke-width": ".5"}
    ElementTree.SubElement(chart, "path", {**attributes, "fill": "none", "pointer-events": "none"})


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
