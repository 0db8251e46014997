"""The table and the figures of LB-BSP's evaluation on CPU clusters, scaled down, beside the paper's.

The paper's cluster had 32 machines and trained for hours; here a few limited processes train for minutes.
What can be compared is the order of the schemes and their ratios, not the times.
"""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from evenpace.local.terminal import make_table
from lab.experiments.schemes import SCHEMES, Scheme

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
    table = make_table(
        "Table 3: prediction approaches in LB-BSP",
        "predictor",
        "RMSE of EMA's",
        "paper",
        "iteration of BSP's",
        "paper",
    )
    paper_ema = TABLE_3["ema"][0]
    for name, (rmse, time) in TABLE_3.items():
        ours = figures["schemes"][f"lb-bsp:{name}"]
        table.add_row(
            name,
            f"{ours['rmse_of_ema']:.2f}",
            f"{rmse / paper_ema:.2f}",
            f"{ours['of_baseline']:.2f}",
            f"{time:.2f}",
        )
    console.print(table)


def print_figure9(figures: Mapping[str, Any], console: Console) -> None:
    """Print Figure 9: iteration times as a share of BSP's in the same style of computing."""
    table = make_table(f"Figure 9: iteration time, {figures['workload']}", "scheme", "of BSP's", "paper")
    paper = FIGURE_9.get(figures["workload"], {})
    for name, ours in figures["schemes"].items():
        known = paper.get(name)
        table.add_row(name, f"{ours['of_baseline']:.2f}", "-" if known is None else f"{known:.2f}")
    console.print(table)
