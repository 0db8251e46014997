"""Figure 10 of LB-BSP: a worker's speed and what NARX predicts of it; see prediction.png.

Example:
  evenpace lab experiment fig10 --workload resnet32
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from lab.experiments.comparison import compare, print_table
from lab.experiments.contended import ContendedOptions
from lab.experiments.schemes import SCHEMES
from lab.fields import Folder
from lab.workloads.by_name import WorkloadName


@dataclass(frozen=True, kw_only=True)
class Figure10Config(ContendedOptions):
    """The configuration of Figure 10."""

    out: Folder = Path("runs/fig10")
    workload: WorkloadName = "resnet32"


def run(config: Figure10Config, console: Console) -> dict[str, Any]:
    """Train under LB-BSP with NARX, and with the moving average that it is compared with."""
    schemes = [SCHEMES[name] for name in ("bsp", "lb-bsp:ema", "lb-bsp:narx")]
    figures = compare(schemes, config.workload, config, console)
    print_table(figures, console)
    console.print("The paper's RMSE with NARX is 0.61 of the moving average's (Table 3).")
    return figures
