"""The demo's report: report.json, a page that shows it, and a picture for the README.

It draws a plain dict, the content of report.json. It knows nothing of how the runs were made, nor of the
cluster, and it measures nothing.

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
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evenpace.reports import files, numbers, templates
from evenpace.reports.demo_measures import median_time, ratio, series, waiting_share
from evenpace.reports.demo_panels import RUNS, Report, panels
from evenpace.reports.drawing import svg
from evenpace.reports.style import STYLE, worker_styles


def write_html(report: Report, path: Path) -> None:
    """Write the page that shows a report: one file that loads nothing else.

    Raises:
        OSError: The file cannot be written.
    """
    drawn = panels(report)
    templates.write_page(
        "demo.html.j2",
        path,
        report=report,
        run_titles=RUNS,
        summary={
            policy: {worker: _summary(run, worker) for worker in report["shares"]}
            for policy, run in report["runs"].items()
        },
        styles=worker_styles(report["shares"]),
        figures={name: svg(panel) for name, panel in drawn.items()},
    )


def write_picture(report: Report, path: Path) -> None:
    """Write one PNG: batch sizes, times and waiting of both runs, on white.

    Raises:
        OSError: The file cannot be written.
    """
    drawn = panels(report)
    layout = (
        ("sizes-even", "sizes-balanced", "durations"),
        ("times-even", "times-balanced", "waiting"),
    )
    styles = worker_styles(report["shares"])
    with matplotlib.rc_context(STYLE):
        labels = [_worker_label(report, worker) for worker in styles]
        columns = max(1, min(len(labels), 150 // (8 + max(map(len, labels)))))  # that fit the width
        legend_height = 0.35 + 0.2 * math.ceil(len(labels) / columns)  # inches
        figure = Figure(figsize=(13, 6 + legend_height), layout="constrained")
        for row, names in zip(figure.subplots(2, 3), layout, strict=True):
            for axes, name in zip(row, names, strict=True):
                axes.set_title(drawn[name].title)
                drawn[name].draw(axes)
        figure.legend(
            [Line2D([], [], **style.line) for style in styles.values()],
            labels,
            loc="outside upper center",
            ncols=columns,
        )
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=130)
    files.replace(path, content.getvalue())


def _summary(run: Mapping[str, Any], worker: str) -> dict[str, float]:
    sizes = series(run, worker, "batch_size")
    times = series(run, worker, "batch_processing_time")
    return {
        "batch_size": numbers.number(run["batch_sizes"].get(worker)),
        "median_time": median_time(run, worker),
        "waiting_share": waiting_share(run, worker),
        "speed": ratio(sizes, times),  # samples per second of processing
    }


def _worker_label(report: Report, worker: str) -> str:
    return f"{worker} (share {numbers.text(report['shares'][worker], '.3g')})"
