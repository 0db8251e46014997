"""The table and the figures of LB-BSP's evaluation on CPU clusters, scaled down, beside the paper's.

The paper's cluster had 32 machines and trained for hours; here a few limited processes train for minutes.
What can be compared is the order of the schemes and their ratios, not the times.
"""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from lab.experiments.schemes import SCHEMES, Scheme
from lab.report import Columns, table_of

# Table 3: RMSE in the paper's unit, and mean iteration time as a share of BSP's.
TABLE_3: Mapping[str, tuple[float, float]] = {
    "memoryless": (11.85, 0.58),
    "ema": (7.85, 0.48),
    "arima": (9.67, 0.52),
    "simple_rnn": (8.34, 0.49),
    "lstm": (9.19, 0.51),
    "narx": (4.78, 0.42),
}

# Figure 9, as the text of section 5.3 gives it: iteration times as a share of BSP's. It gives no numbers for
# the others, but that redundant execution and SSP gain little, and that FlexRR comes second.
FIGURE_9: Mapping[str, Mapping[str, float]] = {
    "svm": {"lb-bsp:narx": 0.38},
    "resnet32": {"lb-bsp:narx": 0.42},
}


def table3_schemes() -> list[Scheme]:
    """Return BSP, and LB-BSP with each of the table's predictors."""
    return [SCHEMES["bsp"], *(SCHEMES[f"lb-bsp:{name}"] for name in TABLE_3)]


def figure9_schemes() -> list[Scheme]:
    """Return the schemes of Figure 9, with FlexRR's own baseline."""
    names = ("bsp", "redundant", "ssp", "lb-bsp:narx", "bsp-one-by-one", "flexrr")
    return [SCHEMES[name] for name in names]


def figure10_schemes() -> list[Scheme]:
    """Return LB-BSP with NARX, and with the moving average that it is compared with."""
    return [SCHEMES["bsp"], SCHEMES["lb-bsp:ema"], SCHEMES["lb-bsp:narx"]]


def print_table3(figures: Mapping[str, Any], console: Console) -> None:
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


def print_figure9(figures: Mapping[str, Any], console: Console) -> None:
    """Print Figure 9: iteration times as a share of BSP's in the same style of computing."""
    columns: Columns = {"of_baseline": ("of BSP's", "{:.2f}"), "paper": ("paper", "{:.2f}")}
    paper = FIGURE_9.get(figures["workload"], {})
    rows = ((name, {**ours, "paper": paper.get(name)}) for name, ours in figures["schemes"].items())
    console.print(table_of(f"Figure 9: iteration time, {figures['workload']}", "scheme", columns, rows))
