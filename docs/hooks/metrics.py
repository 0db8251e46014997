"""The page of the metrics: a table made from their catalogue."""

from pathlib import Path

from evenpace.metrics.catalogue import METRICS

_HEAD = """# Metrics

What `--metrics` exposes.

| name | kind | labels | unit | of | meaning |
| --- | --- | --- | --- | --- | --- |
"""


def metrics_table(_: Path) -> str:
    """The whole page, as Markdown, with a row for each metric."""
    rows = []
    for metric in METRICS.values():
        labels, parts = ", ".join(f"`{label}`" for label in metric.labels), ", ".join(metric.parts)
        cells = (f"`{metric.shown}`", metric.kind, labels, metric.unit, parts, metric.meaning)
        rows.append(f"| {' | '.join(cells)} |\n")
    return _HEAD + "".join(rows)
