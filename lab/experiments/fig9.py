"""Figure 9 of LB-BSP: iteration times of the competing schemes.

Example:
  evenpace lab experiment fig9 --workloads svm,resnet32
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from idl.settings import Setting
from lab.experiments.comparison import compare
from lab.experiments.contended import ContendedOptions
from lab.experiments.paper import FIGURE_9
from lab.experiments.schemes import SCHEMES
from lab.fields import Folder, parse_names
from lab.report import Columns, table_of
from lab.workloads.by_name import WORKLOADS

_SCHEMES = ("bsp", "redundant", "ssp", "lb-bsp:narx", "bsp-one-by-one", "flexrr")


@dataclass(frozen=True, kw_only=True)
class Figure9Config(ContendedOptions):
    """The configuration of Figure 9."""

    out: Folder = Path("runs/fig9")
    workloads: Annotated[
        tuple[str, ...], Setting("What is trained.", metavar="NAME,...", read=parse_names, choices=WORKLOADS)
    ] = ("svm", "resnet32")


def run(config: Figure9Config, console: Console) -> dict[str, Any]:
    """Train each workload with the schemes of Figure 9, each in a folder of its own."""
    schemes = [SCHEMES[name] for name in _SCHEMES]
    found = {}
    for workload in config.workloads:
        part = replace(config, out=config.out / workload)
        found[workload] = compare(schemes, workload, part, console)
        _print(found[workload], console)
    return found


def _print(figures: Mapping[str, Any], console: Console) -> None:
    """Print Figure 9: iteration times as a share of BSP's in the same style of computing."""
    columns: Columns = {"of_baseline": ("of BSP's", "{:.2f}"), "paper": ("paper", "{:.2f}")}
    paper = FIGURE_9.get(figures["workload"], {})
    rows = ((name, {**ours, "paper": paper.get(name)}) for name, ours in figures["schemes"].items())
    console.print(table_of(f"Figure 9: iteration time, {figures['workload']}", "scheme", columns, rows))
