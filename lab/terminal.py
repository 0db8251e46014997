"""Output of the lab's commands: other load of the machine, figures as JSON."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from evenpace.reports import files


def load_line(before: float, after: float) -> str:
    """Return a line about other load of the machine, from its load averages before and after a benchmark."""
    return f"load average {before:.1f} before, {after:.1f} after, on {os.cpu_count()} CPUs"


def give(figures: Mapping[str, Any], json_path: Path | None, console: Console) -> None:
    """Write figures as JSON, or print them where there is no file for them.

    Raises:
        OSError: The file cannot be written.
    """
    if json_path is not None:
        files.write_json(figures, json_path)
    else:
        console.print_json(json.dumps(figures))
