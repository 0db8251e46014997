"""VirtualFlow's table of splits, and forecasts by its published profiles."""

import json

import pytest
from rich.console import Console

from batchsize_manager.planning import recommend
from batchsize_manager.planning_config import Task
from lab.bench.step_times import read_step_times
from lab.experiments.virtualflow import VirtualFlowConfig, interpolation_errors, published_profile, run
from tests import SHARED_DATA
from tests.evenpace.commands import invoke

PROFILES = SHARED_DATA / "gpu-throughput-profiles" / "throughput.csv"


def test_table_4_of_virtualflow_follows_from_the_ratio_of_speeds():
    """With V100 four times as fast, the splits of H2 and H3 are the paper's, and H1 has a better one."""
    splits = {row["set"][:2]: row for row in run(VirtualFlowConfig(), Console(quiet=True))["splits"]}

    assert [splits[name]["split"] for name in ("H1", "H2", "H3")] == ["3584:512", "3072:512", "2048:512"]
    # H3 gains most over V100 alone, as much as over P100 alone, and twofold without communication.
    assert splits["H3"]["over_v100"] == pytest.approx(splits["H3"]["over_p100"]) == pytest.approx(2.0)
    assert splits["H1"]["over_v100"] < splits["H2"]["over_v100"] < splits["H3"]["over_v100"]


@pytest.mark.skipif(not PROFILES.exists(), reason="needs VirtualFlow's published profiles")
def test_published_profiles_give_gains_and_foresee_times(tmp_path):
    """By measured times unlike GPUs beat each kind alone and an even split; interpolation errs little."""
    out = tmp_path / "figures.json"
    result = invoke("lab", "experiment", "virtualflow", "--curves", PROFILES, "--json", out)
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    rows = {(row["model"], row["set"][:2]): row for row in figures["models"]}
    assert len(rows) == 12
    for (model, _), row in rows.items():
        flat = model == "transformer"  # its published times are the same from 128 to 4,096 samples
        assert row["over_even"] > 1.05
        assert row["over_v100"] > (0.99 if flat else 1.5)
        assert row["over_p100"] > 1.3
    assert max(figures["errors"].values()) < 0.06

    curves = read_step_times(PROFILES)["bert-glue-SST-2"]
    profiles = {gpu: published_profile(gpu, "bert", times) for gpu, times in curves.items()}
    found = recommend([(profiles["V100"], 4), (profiles["K80"], 16)], Task(8192, 16, at_once=3))
    assert found.best is found.balanced
    assert interpolation_errors({"bert": curves})["bert"] == figures["errors"]["bert-glue-SST-2"]
