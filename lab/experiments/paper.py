"""The table and the figures of LB-BSP's evaluation on CPU clusters, scaled down, beside the paper's.

The paper's cluster had 32 machines and trained for hours; here a few limited processes train for minutes.
What can be compared is the order of the schemes and their ratios, not the times.
"""

from collections.abc import Mapping

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
