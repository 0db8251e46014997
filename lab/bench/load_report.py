"""Results of a load benchmark on the terminal."""

from typing import Any

from rich.console import Console

from evenpace.local.terminal import make_table


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
