"""The demo's report: report.json, a page that shows it, and a picture for the README.

It draws what it is given: a plain dict, the content of report.json. It knows nothing of how the
runs were made, nor of the cluster, and it measures nothing.

A report looks like this; times are in seconds, shares and accuracies between 0 and 1::

    {"shares": {worker: share of the CPU}, "iterations": count, "total_batch_size": samples,
     "data": name, "limit_kind": name, "seed": number, "speedup": factor,
     "ideal_speedup": factor, "parameters_max_abs_diff": number,
     "runs": {"even": run, "balanced": run}}

    run: {"policy": name, "iteration_s_median": seconds, "waiting_share": share,
          "accuracy": share, "wall_s": seconds, "batch_sizes": {worker: final samples},
          "iterations": [{"iteration": number, "epoch": number, "total": samples,
                          "duration": seconds,
                          "workers": {worker: {"batch_size": samples,
                                               "batch_processing_time": seconds,
                                               "waiting_time": seconds,
                                               "cpu_usage": share, "memory_usage": share}}}],
          "progress": [{"time_s": seconds since the run's start, "iteration": number,
                        "loss": number, "accuracy": share}]}
"""

import io
import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

Report = Mapping[str, Any]

RUNS = {"even": "Even split", "balanced": "Balanced"}

# Okabe and Ito's colours, told apart by the colour-blind; the four with enough contrast on both
# white and black come first. Dashes tell more workers apart than there are colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("", "5 2", "1.5 1.5", "5 2 1.5 2")
# Colours mean workers; the runs get shades. On the page, INK becomes the text's own colour.
INK = "#222222"
GREY = "#8c8c8c"
SHADES = {"even": GREY, "balanced": INK}

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
    """How one worker's lines look: a colour, and dashes as in SVG's stroke-dasharray."""

    colour: str
    dash: str

    @property
    def line(self) -> dict[str, Any]:
        """The same as Matplotlib's line properties."""
        dashes = (0.0, tuple(map(float, self.dash.split())))
        return {"color": self.colour, "linestyle": dashes if self.dash else "solid"}


@dataclass(frozen=True)
class Panel:
    """One plot: what it is named, what it tells those who cannot see it, how it is drawn."""

    name: str
    title: str
    alt: str
    draw: Callable[[Axes], None]


def write_json(report: Report, path: Path) -> None:
    """Writes `report` as JSON, in one step: a reader sees the old file or the new one.

    Numbers that JSON does not have (a diverged loss) become null.

    Raises:
        OSError: The file cannot be written.
    """
    text = json.dumps(_without_nan(report), indent=1, allow_nan=False)
    _replace(path, (text + "\n").encode())


def write_html(report: Report, path: Path) -> None:
    """Writes the page that shows `report`: one file that loads nothing else.

    Raises:
        OSError: The file cannot be written.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=lambda value: _text(value, ".1%"),
        samples=lambda value: _text(value, ",.0f"),
        seconds=lambda value: _text(value, ".3f" if _number(value) < 10 else ".1f"),
        small=lambda value: _text(value, ".2g"),
        factor=lambda value: _text(value, ".2f"),
        share=lambda value: _text(value, ".3g"),
    )
    panels = _panels(report)
    page = environment.get_template("report.html.j2").render(
        report=report,
        run_titles=RUNS,
        summary={
            policy: {worker: _summary(run, worker) for worker in report["shares"]}
            for policy, run in report["runs"].items()
        },
        styles=_styles(report),
        titles={name: panel.title for name, panel in panels.items()},
        figures={name: _svg(panel) for name, panel in panels.items()},
    )
    _replace(path, page.encode())


def write_picture(report: Report, path: Path) -> None:
    """Writes one PNG: batch sizes, times and waiting of both runs, on white.

    Raises:
        OSError: The file cannot be written.
    """
    panels = _panels(report)
    layout = (
        ("sizes-even", "sizes-balanced", "durations"),
        ("times-even", "times-balanced", "waiting"),
    )
    styles = _styles(report)
    with matplotlib.rc_context(STYLE):
        labels = [_worker_label(report, worker) for worker in styles]
        columns = max(1, min(len(labels), 150 // (8 + max(map(len, labels)))))  # that fit the width
        legend_height = 0.35 + 0.2 * math.ceil(len(labels) / columns)  # inches
        figure = Figure(figsize=(13, 6 + legend_height), layout="constrained")
        for row, names in zip(figure.subplots(2, 3), layout, strict=True):
            for axes, name in zip(row, names, strict=True):
                axes.set_title(panels[name].title)
                panels[name].draw(axes)
        figure.legend(
            [Line2D([], [], **style.line) for style in styles.values()],
            labels,
            loc="outside upper center",
            ncols=columns,
        )
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=130)
    _replace(path, content.getvalue())


def _panels(report: Report) -> dict[str, Panel]:
    workers = list(report["shares"])
    runs = report["runs"]
    panels = []
    for policy, run_title in RUNS.items():
        run = runs[policy]
        sizes = _listed(((worker, run["batch_sizes"].get(worker)) for worker in workers), ",.0f")
        times = _listed(((worker, _median_time(run, worker)) for worker in workers), ".3f", " s")
        panels += [
            Panel(
                f"sizes-{policy}",
                f"{run_title}: batch size (samples)",
                f"Batch size of each worker against the iteration. Final sizes: {sizes}.",
                partial(_draw_workers, report, policy, "batch_size"),
            ),
            Panel(
                f"times-{policy}",
                f"{run_title}: batch processing time (s)",
                f"Batch processing time of each worker against the iteration. Medians: {times}.",
                partial(_draw_workers, report, policy, "batch_processing_time"),
            ),
        ]
    waiting = "; ".join(
        f"{title}: " + _listed(((w, _waiting_share(runs[policy], w)) for w in workers), ".0%")
        for policy, title in RUNS.items()
    )
    durations = _listed(
        ((title, runs[policy]["iteration_s_median"]) for policy, title in RUNS.items()), ".3f", " s"
    )
    panels += [
        Panel(
            "durations",
            "Iteration time (s)",
            f"Duration of each iteration in both runs. Medians: {durations}.",
            partial(_draw_durations, report),
        ),
        Panel(
            "waiting",
            "Waiting share",
            f"Share of the run that each worker waits. {waiting}.",
            partial(_draw_waiting, report),
        ),
    ]
    for quantity, form in (("loss", ".3f"), ("accuracy", ".1%")):
        ends = _listed(
            (
                (title, progress[-1][quantity])
                for policy, title in RUNS.items()
                if (progress := runs[policy]["progress"])
            ),
            form,
        )
        panels.append(
            Panel(
                quantity,
                f"Test {quantity}",
                f"Test {quantity} of both runs against time. In the end: {ends or 'unknown'}.",
                partial(_draw_progress, report, quantity),
            )
        )
    return {panel.name: panel for panel in panels}


def _draw_workers(report: Report, policy: str, quantity: str, axes: Axes) -> None:
    """Draws a line per worker, on the scale of both runs, so that these can be compared."""
    series = {
        run: {worker: _series(report["runs"][run], worker, quantity) for worker in report["shares"]}
        for run in RUNS
    }
    iterations = _iteration_numbers(report["runs"][policy])
    for worker, style in _styles(report).items():
        axes.plot(iterations, series[policy][worker], marker=_marker(iterations), **style.line)
    axes.set_ylim(0, _top(x for run in series.values() for line in run.values() for x in line))
    _label_iterations(axes)

    values = {x for line in series[policy].values() for x in line}
    if len(values) == 1 and len(series[policy]) > 1:  # the lines hide each other
        value = values.pop()
        axes.annotate(
            f"every worker: {value:,g}",
            (0.02, value),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 4),
            textcoords="offset points",
        )


def _draw_durations(report: Report, axes: Axes) -> None:
    durations = {}
    for policy, title in RUNS.items():
        run = report["runs"][policy]
        x = _iteration_numbers(run)
        durations[policy] = [_number(iteration["duration"]) for iteration in run["iterations"]]
        axes.plot(x, durations[policy], color=SHADES[policy], label=title, marker=_marker(x))
    axes.set_ylim(0, _top(x for line in durations.values() for x in line))
    _label_iterations(axes)
    _legend(axes)


def _draw_waiting(report: Report, axes: Axes) -> None:
    workers = list(report["shares"])
    for (policy, title), offset in zip(RUNS.items(), (-0.2, 0.2), strict=True):
        shares = [_waiting_share(report["runs"][policy], worker) for worker in workers]
        places = [place + offset for place in range(len(workers))]
        axes.bar(places, shares, width=0.38, color=SHADES[policy], label=title)
    crowded = max(map(len, workers), default=0) * len(workers) > 50
    axes.set_xticks(range(len(workers)), workers, rotation=90 if crowded else 0)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter("{x:.0%}")
    _legend(axes)


def _draw_progress(report: Report, quantity: str, axes: Axes) -> None:
    for policy, title in RUNS.items():
        progress = report["runs"][policy]["progress"]
        x = [point["time_s"] for point in progress]
        y = [_number(point[quantity]) for point in progress]
        axes.plot(x, y, color=SHADES[policy], label=title, marker=_marker(x))
    if quantity == "accuracy":
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("seconds since the run's start")
    _legend(axes)


def _label_iterations(axes: Axes) -> None:
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderpad=0, borderaxespad=0.4)


def _marker(points: list[float]) -> str:
    return "o" if len(points) == 1 else ""  # a line of one point would not be seen


def _svg(panel: Panel) -> str:
    """Draws a panel as an SVG element for the page, of the page's colours and the panel's ids."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": panel.name}):
        figure = Figure(figsize=PANEL_SIZE, layout="constrained")
        axes = figure.subplots()
        axes.set_title(panel.title)
        panel.draw(axes)
        content = io.BytesIO()
        figure.savefig(content, format="svg", transparent=True)

    root = ElementTree.fromstring(content.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            # The metadata mean nothing on a page, and the style sheet would be that of the page.
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)  # HTML knows SVG's elements without a namespace
        element.attrib = {
            _local(name): _of_page(_local(name), value, panel.name) for name, value in element.attrib.items()
        }
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": panel.alt}
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _of_page(name: str, value: str, prefix: str) -> str:
    """Makes an SVG attribute fit a page that holds other figures and has its own colour."""
    if name == "id":
        return f"{prefix}-{value}"
    if name == "href":
        return value.replace("#", f"#{prefix}-")
    return value.replace("url(#", f"url(#{prefix}-").replace(INK, "currentColor")


def _styles(report: Report) -> dict[str, WorkerStyle]:
    styles = {}
    for index, worker in enumerate(report["shares"]):
        round_, colour = divmod(index, len(COLOURS))
        styles[worker] = WorkerStyle(COLOURS[colour], DASHES[round_ % len(DASHES)])
    return styles


def _summary(run: Mapping[str, Any], worker: str) -> dict[str, float]:
    sizes = _series(run, worker, "batch_size")
    times = _series(run, worker, "batch_processing_time")
    return {
        "batch_size": _number(run["batch_sizes"].get(worker)),
        "median_time": _median_time(run, worker),
        "waiting_share": _waiting_share(run, worker),
        "speed": _ratio(sizes, times),  # samples per second of processing
    }


def _waiting_share(run: Mapping[str, Any], worker: str) -> float:
    """The part of the worker's iterations that it spends waiting."""
    durations = [_number(iteration["duration"]) for iteration in run["iterations"]]
    return _ratio(_series(run, worker, "waiting_time"), durations)


def _median_time(run: Mapping[str, Any], worker: str) -> float:
    times = [x for x in _series(run, worker, "batch_processing_time") if math.isfinite(x)]
    return statistics.median(times) if times else math.nan


def _ratio(parts: list[float], wholes: list[float]) -> float:
    """Sum by sum, over the iterations that have both; NaN where there is nothing to divide by."""
    pairs = [pair for pair in zip(parts, wholes, strict=True) if all(map(math.isfinite, pair))]
    whole = sum(whole for _, whole in pairs)
    return sum(part for part, _ in pairs) / whole if whole else math.nan


def _series(run: Mapping[str, Any], worker: str, quantity: str) -> list[float]:
    """One number per iteration; NaN where the worker took no part."""
    return [_number(iteration["workers"].get(worker, {}).get(quantity)) for iteration in run["iterations"]]


def _iteration_numbers(run: Mapping[str, Any]) -> list[float]:
    return [iteration["iteration"] for iteration in run["iterations"]]


def _top(values: Iterable[float]) -> float:
    """The end of an axis from 0 that shows all `values`."""
    return 1.15 * max((x for x in values if math.isfinite(x)), default=0) or 1


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _text(value: float | None, form: str) -> str:
    return format(value, form) if math.isfinite(_number(value)) else "–"


def _listed(pairs: Iterable[tuple[str, float | None]], form: str, unit: str = "") -> str:
    return ", ".join(f"{name} {_text(value, form)}{unit}" for name, value in pairs)


def _worker_label(report: Report, worker: str) -> str:
    return f"{worker} (share {_text(report['shares'][worker], '.3g')})"


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _replace(path: Path, content: bytes) -> None:
    """Puts `content` at `path` in one step; what was there stays if that fails."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
