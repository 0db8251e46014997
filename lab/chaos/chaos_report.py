"""Display of a run: a line while it lasts, a table at its end."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lab.chaos.fault_schedule import KINDS
from lab.chaos.job_progress import Progress
from lab.chaos.storm import Storm
from lab.chaos.supervisor import Supervisor
from lab.chaos.verdict import Verdict

_EVERY_SECONDS = (0.5, 15.0)  # seconds between two lines: on a terminal, where they replace each other; else


class Screen:
    """The line about a run that lasts, on stderr."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._began = time.monotonic()
        self._shown = 0.0

    def show(self, storm: Storm, progress: Mapping[str, Progress], supervisor: Supervisor) -> None:
        """Show the run's progress, if it is time for a new line."""
        now = time.monotonic()
        if now - self._shown < _EVERY_SECONDS[0 if self._live else 1]:
            return
        self._shown = now
        up = sum(process.is_running for process in supervisor.processes.values())
        quiet = now - min(one.moved for one in progress.values())
        versions = ", ".join(str(one.version) for one in progress.values())
        attempts = ", ".join(str(one.attempt) for one in progress.values())
        active = ", ".join(f"{one.fault.kind} {one.target}" for one in storm.active) or "no fault"
        line = (
            f"{now - self._began:5.0f} s  iteration {versions}, {len(storm.over)} faults, "
            f"attempt {attempts}, {up} processes, last step {quiet:.1f} s ago; {active}"
        )
        sys.stderr.write(f"\r{line[:150]:150}" if self._live else line + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        """End the line."""
        if self._live:
            sys.stderr.write("\n")


def print_outcome(outcome: Verdict, folder: Path) -> None:
    """Print a table of the faults, the violations, and the command that repeats the run."""
    console = Console(width=110)
    table = Table(title="Faults")
    for column in ("kind", "faults", "fired", "no target"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    table.add_column("what happens")
    for kind, counts in outcome.counts.items():
        table.add_row(kind, *map(str, counts), KINDS[kind].meaning)
    total = [sum(column) for column in zip(*outcome.counts.values(), strict=True)] or [0, 0, 0]
    table.add_row("all", *map(str, total), "", end_section=True)
    console.print(table)
    for kind, reason in outcome.skipped.items():
        console.print(f"{kind} was left out: {reason}")
    for job, found in outcome.jobs.items():
        console.print(
            f"{job}: {found.iterations} iterations with {found.changes} changes of the batch's size, "
            f"{found.sizes[0]} to {found.sizes[1]} samples; {found.rewinds} rewinds, "
            f"{found.redone} iterations redone; longest stall {found.longest_stall:.1f} s.\n"
            f"Parameters: {found.compared} fingerprints and the final ones differ from one process by "
            f"{found.error:.1e} at most"
            + (", and by no bit from a run without faults" if found.same_bits else "")
            + f".\nThe manager has no record of {found.missing} iterations that it had not written when it "
            f"died."
        )
    console.print(
        f"{len(outcome.excused)} workers were taken out after a long silence.\n"
        f"Violations: {len(outcome.violations)}."
    )
    for violation in outcome.violations:
        console.print(f"- {violation}", markup=False)
    if outcome.violations:
        console.print(f"Files: {folder}\nAgain: {outcome.settings.command}", markup=False)
