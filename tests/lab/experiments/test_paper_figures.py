"""All figures of the paper in one page; what cannot be measured is told."""

import pytest

from lab.experiments import paper
from lab.experiments.paper_claims import FIGURES
from lab.experiments.paper_figures import ExperimentOutcome, write
from tests.evenpace.commands import invoke
from tests.evenpace.reports.pages import Page

SIZES = "--workers 4 --iterations 40 --predictor ema --first-fit 20 --refit-every 20"


def paper_page(out, *arguments):
    """Run `evenpace lab experiment paper` in this process."""
    command = ["lab", "experiment", "paper", "--out", str(out), *arguments]
    return invoke(*command, catch_exceptions=False)


def scheme(number, **more):
    """Figures of a scheme under contention, as the experiments have them."""
    rows = [[10, 5.0 + number, 5.2, 0.5] for _ in range(30)]
    return {
        "of_baseline": 0.5 + 0.01 * number,
        "rmse_of_ema": 0.7,
        "relative_rmse": 0.2,
        "workers": {"worker-0": rows, "worker-1": rows},
        **more,
    }


def phase(sizes):
    """A part of a run before or after the cut."""
    return {"reached": 12, "imbalance": 1.1, "batch_sizes": sizes, "times": dict.fromkeys(sizes, 0.1)}


def measured():
    """Make possible figures of every experiment, by part."""
    curve = [{"seconds": s, "updates": 4 * s, "epochs": s / 9, "accuracy": 0.1 * s} for s in range(9)]
    of_bsp = {"per_update_s": 0.44, "updates_to_target": None, "seconds_to_target": 0.77}
    coordination = {
        name: {"of_bsp": of_bsp, "accuracy": 0.9753, "runs": [{"curve": curve}]}
        for name in ("bsp", "asp", "ssp", "lb-bsp:leader_straggler")
    }
    predictors = {f"lb-bsp:{name}": scheme(i) for i, name in enumerate(paper.TABLE_3)}
    workers = {"worker-0": 64.0, "worker-1": 36.0}
    lines = {name: [size] * 20 for name, size in workers.items()}
    return {
        "fig6": {"workloads": {"digits": {"schemes": coordination}}, "load_average": 0.5},
        "fig8": {
            "shares": {"worker-0": 0.4, "worker-1": 0.2},
            "cut": {"worker": "worker-1", "iteration": 10, "mbit": 100.0, "slowdown": 1.53},
            "before": phase(workers),
            "after": phase(workers),
            "iterations": list(range(20)),
            "batch_sizes": lines,
            "times": lines,
        },
        "fig9": {
            "workload": "svm",
            "schemes": {name: scheme(1) for name in ("bsp", "redundant", "ssp", "lb-bsp:narx", "flexrr")},
        },
        "table3": {"workload": "svm", "schemes": {"bsp": scheme(0), **predictors}},
        "fig11": {
            "iteration_s": 1.0,
            "sizes": [{"workers": 96, "mean_ms": 5.9, "p5_ms": 4.9, "p95_ms": 8.1, "share": 0.0059}],
        },
    }


@pytest.mark.ci
def test_every_figure_is_drawn_beside_what_the_paper_says(tmp_path):
    """Both numbers stand in one row, each figure is in the page, as SVG and as PNG; nothing is loaded."""
    outcomes = {name: ExperimentOutcome("command", figures) for name, figures in measured().items()}
    source = write(outcomes, tmp_path, "small").read_text()
    page = Page(source)
    rows = {row[0]: row[1:] for row in page.rows}
    assert rows["digits, ssp: updates to the target"] == ["up to 2.05", "not reached"]
    assert rows["digits, bsp: accuracy in the end"] == ["0.92 with ResNet-32", "0.975"]
    assert rows["its iterations right after"] == ["longer", "1.53 times as long"]
    assert rows["narx: RMSE, of EMA's"] == ["0.61", "0.70"]
    assert rows["lb-bsp:narx: iteration time"] == ["0.38", "0.51"]
    assert rows["96 workers: share of an iteration"] == ["below 1.1%", "0.59% (5.9 ms of 1 s)"]
    assert page.tags.count("figure") == page.values("role").count("img") == len(FIGURES)
    for figure in FIGURES:
        assert (tmp_path / f"{figure.name}.svg").stat().st_size > 1000
        assert (tmp_path / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert page.values("src") == []
    assert "http" not in source


def test_what_cannot_be_measured_is_told(tmp_path):
    """The page has the reason in place of the figure, and those of other experiments."""
    found = measured()
    outcomes = {
        "fig8": ExperimentOutcome("command", None, "this needs root"),
        "fig11": ExperimentOutcome("x", found["fig11"]),
    }
    page = Page(write(outcomes, tmp_path, "small").read_text())
    assert "Not measured: this needs root" in page.text
    assert page.tags.count("figure") == 1
