"""Claims of LB-BSP's evaluation, figure by figure, beside the measurements of runs here: values for a page.

Each figure is read from the content of the experiments' JSON files. The paper's numbers are those of its text
and tables; where it has only bars and curves, none are read off them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from lab.experiments import paper, plots

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """One quantity, as the paper states it and as measured here."""

    what: str
    paper: str
    here: str


@dataclass(frozen=True)
class PaperFigure:
    """A figure or table of the paper."""

    name: str  # name for files and links
    title: str  # number and subject of the figure
    part: str  # name of the experiment that measures it
    paper: str  # how the paper measured it
    here: str  # how it is measured here, and what that cannot show
    claims: Callable[[Figures], list[Claim]]  # returns the claims, from the experiment's figures
    draw: Callable[[Figures], Figure | None]  # draws the figure, from the experiment's figures


def _efficiency(figures: Figures) -> list[Claim]:
    claims = []
    for workload, entry in figures["workloads"].items():
        for scheme, values in entry["schemes"].items():
            if scheme == "bsp":
                continue
            per_update, updates, seconds = _EFFICIENCY.get(scheme.split(":")[0], (_ORDER,) * 3)
            of_bsp = values["of_bsp"]
            claims += [
                Claim(f"{workload}, {scheme}: time per update", per_update, _factor(of_bsp["per_update_s"])),
                Claim(f"{workload}, {scheme}: updates to the target", updates, _reached(of_bsp, "updates")),
                Claim(f"{workload}, {scheme}: time to the target", seconds, _reached(of_bsp, "seconds")),
            ]
    return claims


_ORDER = "–"
_EFFICIENCY = {
    "asp": ("LB-BSP is 15% better with Inception-V3", "up to 4.76", "above LB-BSP's"),
    "ssp": ("above LB-BSP's", "up to 2.05", "above LB-BSP's"),
    "lb-bsp": ("0.63 with ResNet-32", "almost 1", "the least; up to 54% below the second best"),
}


def _accuracy(figures: Figures) -> list[Claim]:
    known = {"bsp": "0.92", "lb-bsp": "0.92", "asp": "below 0.88", "ssp": "below 0.88"}
    return [
        Claim(
            f"{workload}, {scheme}: accuracy in the end",
            f"{known.get(scheme.split(':')[0], _ORDER)} with ResNet-32",
            f"{values['accuracy']:.3f}",
        )
        for workload, entry in figures["workloads"].items()
        for scheme, values in entry["schemes"].items()
    ]


def _migration(figures: Figures) -> list[Claim]:
    before, after, cut = figures["before"], figures["after"], figures["cut"]
    claims = [
        Claim("all take about the same time", "after 30 iterations", _after(before)),
        Claim("batch sizes then", "89, 21, 12, 6 of 128", _sizes(before)),
    ]
    if after is None:
        return [*claims, Claim("after the bandwidth is cut", "a new equilibrium", "not measured: no cut")]
    return [
        *claims,
        Claim("the cut", "10 to 2.5 Gbit/s, second fastest worker", f"to {cut['mbit']:g} Mbit/s, likewise"),
        Claim("its iterations right after", "longer", f"{cut['slowdown']:.2f} times as long"),
        Claim("all take about the same time again", "a new equilibrium", _after(after)),
        Claim("batch sizes then", _ORDER, _sizes(after)),
    ]


def _schemes(figures: Figures) -> list[Claim]:
    known = paper.FIGURE_9.get(figures["workload"], {})
    said = {"redundant": "marginally below 1", "ssp": "marginally below 1", "flexrr": "the second best"}
    return [
        Claim(
            f"{name}: iteration time",
            f"{known[name]:.2f}" if name in known else said.get(name, _ORDER),
            _factor(values["of_baseline"]),
        )
        for name, values in figures["schemes"].items()
        if name not in ("bsp", "bsp-one-by-one")
    ]


def _prediction(figures: Figures) -> list[Claim]:
    paper_narx, paper_ema = paper.TABLE_3["narx"][0], paper.TABLE_3["ema"][0]
    narx, ema = figures["schemes"]["lb-bsp:narx"], figures["schemes"]["lb-bsp:ema"]
    return [
        Claim("NARX's RMSE, of EMA's", f"{paper_narx / paper_ema:.2f}", _factor(narx["rmse_of_ema"])),
        Claim("NARX's RMSE, of the mean speed", _ORDER, f"{narx['relative_rmse']:.1%}"),
        Claim("EMA's RMSE, of the mean speed", _ORDER, f"{ema['relative_rmse']:.1%}"),
    ]


def _approaches(figures: Figures) -> list[Claim]:
    paper_ema = paper.TABLE_3["ema"][0]
    claims = []
    for name, (rmse, seconds) in paper.TABLE_3.items():
        ours = figures["schemes"][f"lb-bsp:{name}"]
        claims += [
            Claim(f"{name}: RMSE, of EMA's", f"{rmse / paper_ema:.2f}", _factor(ours["rmse_of_ema"])),
            Claim(f"{name}: iteration time, of BSP's", f"{seconds:.2f}", _factor(ours["of_baseline"])),
        ]
    return claims


def _overhead(figures: Figures) -> list[Claim]:
    return [
        Claim(
            f"{size['workers']} workers: share of an iteration",
            "below 1.1%" if size["workers"] == 96 else _ORDER,
            f"{size['share']:.2%} ({size['mean_ms']:.1f} ms of {figures['iteration_s']:g} s)",
        )
        for size in figures["sizes"]
    ]


def _factor(value: float | None) -> str:
    return _ORDER if value is None else f"{value:.2f}"


def _reached(of_bsp: Mapping[str, float | None], what: str) -> str:
    value = of_bsp[f"{what}_to_target"]
    return "not reached" if value is None else f"{value:.2f}"


def _after(phase: Mapping[str, Any]) -> str:
    return "not reached" if phase["reached"] is None else f"after {phase['reached']} iterations"


def _sizes(phase: Mapping[str, Any]) -> str:
    sizes = phase["batch_sizes"].values()
    return f"{', '.join(f'{size:.0f}' for size in sizes)} of {sum(sizes):.0f}"


FIGURES = (
    PaperFigure(
        "fig6",
        "Figure 6: efficiency on unequal workers",
        "fig6",
        "16 GPU instances of four kinds, V100 to K520; CifarNet and ResNet-32 on CIFAR-10, Inception-V3 on "
        "ImageNet.",
        "Processes with unequal shares of this machine's cores stand for the GPUs. A larger batch does not "
        "make a sample cheaper on them, so that LB-BSP cannot beat ASP by the update. BSP is 1.",
        _efficiency,
        plots.efficiency,
    ),
    PaperFigure(
        "fig7",
        "Figure 7: accuracy against epochs",
        "fig6",
        "The same cluster, ResNet-32 and Inception-V3, trained to the end.",
        "The runs of Figure 6. They are short: who falls behind shows, what is reached in the end does not.",
        _accuracy,
        plots.accuracy,
    ),
    PaperFigure(
        "fig8",
        "Figure 8: batch sizes and times, before and after a bandwidth is cut",
        "fig8",
        "Four GPU instances, one of each kind, Inception-V3; at iteration 150 the M60's bandwidth is cut.",
        "Four processes with unequal shares, each in a network namespace; the kernel bounds one's bandwidth "
        "in the middle of the run.",
        _migration,
        plots.migration,
    ),
    PaperFigure(
        "fig9",
        "Figure 9: iteration times of competing schemes",
        "fig9",
        "32 CPU instances that others use, as the machines of a Google trace were used; SVM and ResNet-32.",
        "Four processes with equal shares, each disturbed at random by an equal competitor, so that less is "
        "to be won. FlexRR is related to BSP one sample at a time, as in the paper.",
        _schemes,
        plots.iteration_times,
    ),
    PaperFigure(
        "fig10",
        "Figure 10: a worker's speed, and what is predicted of it",
        "table3",
        "One m4.2xlarge of the same cluster, 100 iterations of ResNet-32, after more than a thousand.",
        "The runs of Table 3: a predictor that learns has had few iterations to learn from.",
        _prediction,
        lambda figures: plots.prediction(figures, ("lb-bsp:ema", "lb-bsp:narx")),
    ),
    PaperFigure(
        "table3",
        "Table 3: approaches to prediction",
        "table3",
        "ResNet-32 on the same cluster; RMSE in samples per second.",
        "Four disturbed processes, as for Figure 9. Over few iterations a moving average is hard to beat; "
        "see docs/cpu-clusters.md for longer runs.",
        _approaches,
        plots.approaches,
    ),
    PaperFigure(
        "fig11",
        "Figure 11: what balancing costs",
        "fig11",
        "32, 64 and 96 CPU instances, ResNet-32 and Inception-V3; reading times from TensorFlow's logs is "
        "included.",
        "Simulated workers over real connections to a real manager, on one machine; the share is that of an "
        "iteration of one second.",
        _overhead,
        plots.overhead,
    ),
)
