"""The table of all metrics, as documents have it."""

from evenpace.metrics.catalogue import METRICS


def markdown() -> str:
    """A Markdown table, a row for each metric."""
    rows = ["| name | kind | labels | unit | of | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        cells = (
            f"`{metric.shown}`",
            metric.kind,
            labels,
            metric.unit,
            ", ".join(metric.parts),
            metric.meaning,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
