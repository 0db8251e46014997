"""Results of an attack on the terminal, and files of the inputs that did harm."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lab.attacks.attackers import Harm


def show(console: Console, figures: dict[str, Any]) -> None:
    """Print a table of the inputs tried and lines about the harm done."""
    title = f"{figures['inputs']} inputs in {figures['seconds']:.0f} s, {figures['inputs_per_second']:.0f}/s"
    table = Table(title=title, title_justify="left")
    for column in ("kind", "tried", "what the services did"):
        table.add_column(column, justify="right" if column == "tried" else "left")
    for kind, count in figures["tried"].items():
        outcomes = figures["outcomes"].get(kind, {})
        table.add_row(kind, str(count), ", ".join(f"{what} {times}" for what, times in outcomes.items()))
    console.print(table)
    for name, service in figures["services"].items():
        memory = service["rss_mib"]
        console.print(
            f"{name}: {memory['settled']:.1f} MiB after {memory['settled_after_s']:.0f} s, "
            f"{memory['end']:.1f} at the end ({memory['slope_per_minute']:+.2f} a minute); "
            f"{service['files']['most']} file descriptors at most, {service['files']['end']} at the end; "
            f"{service['cores']:.2f} cores"
        )
    honest = figures["honest"]
    times = honest["iteration_ms"]
    console.print(
        f"honest job: {honest['iterations']} iterations, {times['p50']:.0f} ms (99%: {times['p99']:.0f}, at "
        f"most {times['max']:.0f}); {honest['bits_changed']} bits of its parameters changed"
    )
    console.print(f"{len(figures['harms'])} harms{':' if figures['harms'] else ''}")
    slowest = (f"{name} {seconds:.2f} s" for name, seconds in figures["slowest_answer_s"].items())
    console.print(f"the slowest answers to attackers: {', '.join(slowest)}")
    for harm, times in figures["harms"].items():
        console.print(f"  {harm} ({times} times)")


def write_inputs(harms: Mapping[str, Harm], json_path: Path) -> None:
    """Write the inputs sent before each harm to files beside `json_path`, so that they can be tried again."""
    for number, (what, harm) in enumerate(harms.items()):
        if harm.inputs:
            lines = [json.dumps({"kind": one.kind, "hex": one.data.hex()}) for one in harm.inputs]
            text = "\n".join([json.dumps({"harm": what}), *lines, ""])
            json_path.with_name(f"{json_path.name}.harm-{number}.jsonl").write_text(text)
