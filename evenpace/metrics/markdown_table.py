"""The catalogue of metrics as a Markdown table, for documents."""

from evenpace.metrics.catalogue import METRICS


def markdown() -> str:
    """Return a Markdown table with a row for each metric."""
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
