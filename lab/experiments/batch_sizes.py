"""How much work trainings need with batches of each size, and how well a law foresees it.

The law is W0 (1 + B/B_c); each size is predicted from all others of its benchmark. Nothing is trained.

The file has the columns `benchmark,batch_size,runs,mean_to_target,std`, and may have `round` and
`median_to_target`: how much each benchmark needed to its target quality with batches of each size, in a unit
that may differ by benchmark, and over how many runs. MLPerf's reference convergence points are such. The
rounds of a benchmark are benchmarks of their own, as rules, targets and models differ between them; nothing
is fitted across rounds.

Example:
  evenpace lab experiment batch-sizes --data mlperf.csv --plot batch-sizes.png
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from evenpace.local.terminal import make_table
from evenpace.reports import style
from idl.settings import Setting
from lab.csv_rows import read_rows
from lab.experiments.batch_size_law import FEWEST, Point, contradictions, fit, fit_without_each, nearest
from lab.plots import colour, panels, save, styled
from lab.report import Columns, cells_of

_COLUMNS = ("benchmark", "batch_size", "runs", "mean_to_target", "std")
_OTHERS = ("round", "median_to_target")
_GOOD = 0.1  # median relative error of sizes left out, up to which the law is said to hold
_KNOWN = 4.0  # B_c is known if its bounds are within this factor, as a noise scale is

Benchmarks = Mapping[tuple[str, str], Sequence[Point]]
"""Points by benchmark and round, in the order of their sizes; the round is "" where there is none."""


@dataclass(frozen=True)
class BatchSizesConfig:
    """The configuration of the law's test."""

    data: Annotated[
        Path, Setting("Trainings: a CSV with benchmark,batch_size,runs,mean_to_target,std.", folder=False)
    ]
    plot: Annotated[Path | None, Setting("Draw points and law, a PNG file.", folder=False)] = None


def run(config: BatchSizesConfig, console: Console) -> dict[str, Any]:
    """Judge the law by each benchmark, and print the table.

    Returns, with None for a B_c without bound, and for what takes three sizes, `{"benchmarks": [{"benchmark",
    "round", "points": [{"batch_size", "runs", "work", "deviation", "predicted", "error"}], "work": W0,
    "critical": B_c, "critical_least", "critical_most": bounds of B_c, of two standard errors each way,
    "known": true where these are within a factor of 4, "error": {"median", "largest", "nearest": median of
    taking the nearest other size's work}, "holds": true where the median error is at most 10%, "same_as": the
    benchmark with the same points, if there is one before it, "remarks": [text]}]}`.
    """
    benchmarks = read_points(config.data)
    rows: list[dict[str, Any]] = []
    known: dict[tuple[Point, ...], str] = {}
    for (benchmark, round_), points in benchmarks.items():
        row = {"benchmark": benchmark, "round": round_, **judge(points)}
        first = known.setdefault(tuple(points), benchmark)
        rows.append({**row, "same_as": None if first == benchmark else first})
    _print(console, rows)
    if config.plot is not None:
        save(draw(rows), config.plot)
    return {"benchmarks": rows}


def read_points(path: Path) -> Benchmarks:
    """Read a file of trainings (ValueError: another form, or a benchmark has a size twice in a round)."""
    found: dict[tuple[str, str], dict[int, Point]] = {}
    for row in read_rows(path, _COLUMNS, _OTHERS):
        size = row.integer("batch_size", least=1)
        points = found.setdefault((row.text("benchmark"), row.values.get("round", "")), {})
        if size in points:
            raise row.error("batch_size", "the benchmark has this size already, in this round")
        points[size] = Point(
            size, row.integer("runs", least=1), row.positive("mean_to_target"), row.number("std")
        )
    if not found:
        raise ValueError(f"{path}: there are no rows")
    return {key: [points[size] for size in sorted(points)] for key, points in found.items()}


def judge(points: Sequence[Point]) -> dict[str, Any]:
    """Return a benchmark's figures, of the JSON, but for its names; its points are by ascending size."""
    rows: list[dict[str, Any]] = [
        {"batch_size": one.size, "runs": one.runs, "work": one.work, "deviation": one.deviation}
        for one in points
    ]
    if len(points) < FEWEST:
        remarks = [f"{len(points)} of the {FEWEST} sizes that it takes", *contradictions(points)]
        return {
            **dict.fromkeys(("work", "critical", "critical_least", "critical_most", "known")),
            **dict.fromkeys(("error", "holds")),
            "points": rows,
            "remarks": remarks,
        }
    law = fit(points)
    near = []
    for row, other, work in zip(rows, fit_without_each(points), nearest(points), strict=True):
        predicted = other.at(row["batch_size"])
        row.update(predicted=predicted, error=abs(predicted / row["work"] - 1))
        near.append(abs(work / row["work"] - 1))
    median = statistics.median(row["error"] for row in rows)
    least, most = law.interval
    known = most <= _KNOWN * least
    return {
        "points": rows,
        "work": law.work,
        "critical": law.critical,
        "critical_least": least,
        "critical_most": most,
        "known": known,
        "error": {
            "median": median,
            "largest": max(row["error"] for row in rows),
            "nearest": statistics.median(near),
        },
        "holds": median <= _GOOD,
        "remarks": [*([] if known else [f"B_c is {_between(least, most)}"]), *contradictions(points)],
    }


@styled
def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw work over W0 against the batch size over B_c: all points of one line, if the law holds.

    Benchmarks whose B_c is not known, or with the points of another, are left out.
    """
    drawn = [row for row in rows if row["known"] and row["same_as"] is None]
    figure, (axes,) = panels(7.5, 4.2)
    markers = "osD^v<>P"
    for place, row in enumerate(drawn):
        axes.plot(
            [point["batch_size"] / row["critical"] for point in row["points"]],
            [point["work"] / row["work"] for point in row["points"]],
            markers[place // len(style.COLOURS) % len(markers)],
            color=colour(place),
            label=_name(row, rows),
            markersize=5,
        )
    ratios = [point["batch_size"] / row["critical"] for row in drawn for point in row["points"]]
    if ratios:
        line = np.geomspace(min(ratios), max(ratios), 100)
        axes.plot(line, 1 + line, color=style.GREY, zorder=1, label="1 + B/B_c")
        axes.set(xscale="log", yscale="log")
        figure.legend(loc="outside right upper")
    axes.set_title("Work to the target by batch size")
    axes.set_xlabel("batch size / B_c")
    axes.set_ylabel("work / W0")
    return figure


def _name(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a benchmark's name, with the round where there are several."""
    several = sum(other["benchmark"] == row["benchmark"] for other in rows) > 1
    return f"{row['benchmark']}, {row['round']}" if several else str(row["benchmark"])


def _between(least: float, most: float) -> str:
    """Return bounds of B_c in words."""
    return f"at least {least:,.0f}" if math.isinf(most) else f"from {least:,.0f} to {most:,.0f}"


def _print(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    columns: Columns = {
        "points": ("sizes", lambda points: str(len(points))),
        "work": ("W0", "{:.4g}"),
        "critical": ("B_c", "{:,.0f}"),
        "error.median": ("error", "{:.1%}"),
        "error.nearest": ("nearest", "{:.1%}"),
    }
    title = "W = W0 (1 + B/B_c), and the median error of sizes that are left out of the fit"
    table = make_table(title, "benchmark", *(heading for heading, _ in columns.values()))
    table.add_column("remarks")
    for row in rows:
        same = [] if row["same_as"] is None else [f"points of {row['same_as']}"]
        remarks = "; ".join([*same, *row["remarks"]])
        table.add_row(_name(row, rows), *cells_of(columns, row, missing=""), remarks)
    console.print(table)
    own = [row for row in rows if row["same_as"] is None and row["holds"] is not None]
    good = sum(row["holds"] for row in own)
    near = sum(row["error"]["nearest"] <= _GOOD for row in own)
    console.print(
        f"The median error is at most {_GOOD:.0%} in {good} of {len(own)} benchmarks that differ in their "
        f"points and have at least {FEWEST} sizes. With the work of the nearest other size in place of the "
        f"law, it is in {near}.",
        soft_wrap=True,
    )
