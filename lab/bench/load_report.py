"""Results of a load benchmark on the terminal, and as a picture."""

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from rich.console import Console

from evenpace.local.terminal import make_table
from evenpace.reports import style


def show(console: Console, figures: dict[str, Any]) -> None:
    """Print tables of the rounds and of the manager's resources, and the refusals."""
    config, memory = figures["config"], figures["manager"]["rss_mib"]
    title = f"{config['jobs']} jobs with {config['workers']} workers each, {figures['seconds']:.0f} s"
    table = make_table(title, "rounds of", "rounds", "p50 ms", "p99 ms", "p99.9 ms", "p99 / p50")
    rows = {**(figures["by_job"] if len(figures["by_job"]) <= 20 else {}), "all": figures["round_ms"]}
    for name, latency in rows.items():
        numbers = (f"{latency[key]:.1f}" for key in ("p50", "p99", "p99.9"))
        table.add_row(name, str(latency["rounds"]), *numbers, f"{latency['p99_to_p50']:.2f}")
    console.print(table)
    console.print(
        f"{figures['rounds_per_second']:.1f} rounds/s; the manager used {figures['manager']['cores']:.2f} "
        f"cores, {memory['settled']:.0f} MiB after {memory['settled_after_s']:.0f} s and {memory['end']:.0f} "
        f"at the end ({memory['slope_per_minute']:+.2f} a minute), {figures['manager']['files']['most']} "
        f"file descriptors; {sum(figures['errors'].values())} errors"
    )
    for refusal in figures["refusals"]:
        console.print(f"{refusal['what']}: {refusal['error'] or 'NOT REFUSED'}: {refusal['message']}")


def plot(figures: dict[str, Any], path: Path) -> None:
    """Plot memory and rounds over time."""
    with rc_context(style.STYLE):
        figure = Figure(figsize=(7.5, 4.8), layout="constrained")
        above, below = figure.subplots(2, 1)
        samples = figures["manager"]["samples"]
        above.plot([s[0] / 60 for s in samples], [s[1] / 1024 for s in samples], color=style.COLOURS[0])
        above.set_title("The manager's resident memory, MiB")
        above.set_ylim(bottom=0)
        for number, key in enumerate(("p50", "p99")):
            values = [minute[key] for minute in figures["by_minute"]]
            below.plot(range(1, len(values) + 1), values, label=key, color=style.COLOURS[number], marker="o")
        below.set_title("Barrier rounds of each minute, ms")
        below.set_xlabel("minutes")
        below.set_ylim(bottom=0)
        below.legend()
        figure.savefig(path, dpi=130)
