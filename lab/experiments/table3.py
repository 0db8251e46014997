"""Table 3 of LB-BSP: prediction approaches by their error and by the iteration time they give.

Example:
  evenpace lab experiment table3 --iterations 600 --first-fit 200
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from lab.experiments.comparison import compare
from lab.experiments.contended import ContendedOptions
from lab.experiments.paper import TABLE_3
from lab.experiments.schemes import SCHEMES
from lab.fields import Folder
from lab.report import Columns, table_of
from lab.workloads.by_name import WorkloadName


@dataclass(frozen=True, kw_only=True)
class Table3Config(ContendedOptions):
    """The configuration of Table 3."""

    out: Folder = Path("runs/table3")
    workload: WorkloadName = "resnet32"


def run(config: Table3Config, console: Console) -> dict[str, Any]:
    """Train under BSP, and under LB-BSP with each of the table's predictors."""
    schemes = [SCHEMES["bsp"], *(SCHEMES[f"lb-bsp:{name}"] for name in TABLE_3)]
    figures = compare(schemes, config.workload, config, console)
    _print(figures, console)
    return figures


def _print(figures: Mapping[str, Any], console: Console) -> None:
    """Print Table 3: the paper's errors and times beside ours, the errors as a share of EMA's."""
    columns: Columns = {
        "rmse_of_ema": ("RMSE of EMA's", "{:.2f}"),
        "paper.rmse": ("paper", "{:.2f}"),
        "of_baseline": ("iteration of BSP's", "{:.2f}"),
        "paper.time": ("paper", "{:.2f}"),
    }
    ema = TABLE_3["ema"][0]
    rows = (
        (name, {**figures["schemes"][f"lb-bsp:{name}"], "paper": {"rmse": rmse / ema, "time": time}})
        for name, (rmse, time) in TABLE_3.items()
    )
    console.print(table_of("Table 3: prediction approaches in LB-BSP", "predictor", columns, rows))
