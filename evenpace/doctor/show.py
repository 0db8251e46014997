"""Output of findings: as a table in a terminal, as lines elsewhere, as JSON."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from evenpace.doctor.findings import LEVELS, Finding

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


def as_json(findings: Sequence[Finding]) -> str:
    """Return a JSON object with all findings and their number at each level."""
    counts = Counter(finding.level for finding in findings)
    return json.dumps(
        {
            "counts": {level: counts[level] for level in LEVELS},
            "findings": [asdict(finding) for finding in findings],
        },
        indent=2,
    )


def show(findings: Sequence[Finding]) -> None:
    """Print all findings, the worst last, next to the prompt."""
    ordered = sorted(findings, key=lambda finding: LEVELS.index(finding.level))
    if sys.stdout.isatty():
        _show_table(ordered)
    else:
        for finding in ordered:
            advice = f"\n{'':9}-> {finding.advice}" if finding.advice else ""
            print(f"{finding.level:8} {finding.subject}: {finding.found}{advice}")  # noqa: T201 - a command's output
    counts = Counter(finding.level for finding in findings)
    totals = [
        f"{counts[level]} {level if counts[level] == 1 or level == 'ok' else level + 's'}" for level in LEVELS
    ]
    print(", ".join(totals))  # noqa: T201 - a command's output


def _show_table(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "about", "found", "what to do")
    for finding in findings:
        level = Text(finding.level, _STYLES[finding.level])
        table.add_row(level, Text(finding.subject), Text(finding.found), Text(finding.advice))
    Console().print(table)
