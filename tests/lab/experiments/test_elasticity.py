"""`evenpace lab experiment elasticity`: traces of jobs, their figures, and both policies on them."""

import json
from functools import partial

import pytest

from lab.experiments.elasticity import ELASTIC, STATIC, figures_of
from lab.simulator.record import Life
from lab.simulator.workloads import Arrival
from scheduler.nodes import Cluster
from tests import SHARED_DATA
from tests.evenpace.commands import invoke

TRACES = SHARED_DATA / "cluster-traces" / "pollux"


experiment = partial(invoke, "lab", "experiment", "elasticity", "--traces", columns=200)


def test_figures_are_those_of_the_lives():
    """Time begins with the first arrival; of several jobs of the highest priority the longest counts."""
    lives = [Life("a", "made", 100, started=110, ended=200, device_seconds=180)]
    lives += [Life(name, "made", 120, 160, end, device_seconds=60) for name, end in (("b", 220), ("c", 300))]
    arrivals = [Arrival("a", 100, "made", 2, 8)]
    arrivals += [Arrival(name, 120, "made", 1, 8, priority=5.0) for name in "bc"]

    assert figures_of(lives, arrivals, Cluster.of([("gpu", 1, 2)])) == {
        "makespan_s": 200,
        "utilisation": 300 / 400,
        "device_hours": 300 / 3600,
        "median_completion_s": 100,
        "median_queueing_s": 40,
        "first_priority_completion_s": 180,
    }


def test_resizing_pays_with_real_step_times(tmp_path):
    """Makespan and waits are shorter for each seed, as the paper found; the simulation is deterministic."""
    if not TRACES.exists():
        pytest.skip("needs ../shared/data/cluster-traces")
    out = tmp_path / "out.json"
    result = experiment(TRACES, "--seeds", "1,2", "--interval", 30, "--json", out)
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())

    for one in (figures["three"], *figures["twenty"]):
        assert one[ELASTIC]["makespan_s"] < 0.9 * one[STATIC]["makespan_s"]
        assert one[ELASTIC]["utilisation"] > 1.1 * one[STATIC]["utilisation"]
    for one in figures["twenty"]:
        assert one[ELASTIC]["median_queueing_s"] < 0.1 * one[STATIC]["median_queueing_s"]
