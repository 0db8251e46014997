"""The contention experiment in containers: stress-ng within each worker's own limits."""

import json

import pytest

from lab.experiments.containers import ContainerCluster, ContainerError, require_engine
from tests.containers.engine import docker
from tests.evenpace.commands import invoke

pytestmark = [pytest.mark.containers, pytest.mark.slow]


def test_competitors_in_a_container_slow_its_worker_down(tmp_path, monkeypatch):
    """A scheme runs to its end in containers; whoever is disturbed is slower, and sees why; nothing stays."""
    try:
        require_engine()
    except ContainerError as error:
        pytest.skip(str(error))
    schedule = tmp_path / "schedule.csv"
    # Three beside one worker show also where other processes of the machine leave containers less than their
    # share.
    tasks = [f"0,{start},1000,1,0\n" for start in (4, 4.1, 4.2)]
    schedule.write_text("worker,start,end,cpu,memory\n" + "".join(tasks))
    arguments = [
        *("lab", "experiment", "contention", "--containers"),
        *("--workload", "cifarnet", "--schemes", "lb-bsp:ema", "--shares", "0.3,0.3"),
        *("--iterations", "24", "--batch-size", "16", "--settle", "12"),
        *("--schedule", str(schedule), "--out", str(tmp_path / "out"), "--", "--test-samples", "50"),
    ]
    networks = []
    start = ContainerCluster.start
    monkeypatch.setattr(ContainerCluster, "start", lambda it: (networks.append(it._network), start(it)))
    result = invoke(*arguments, catch_exceptions=False)
    report = json.loads((tmp_path / "out" / "report.json").read_text())

    assert result.exit_code == 0, result.output
    for figures in report["schemes"].values():
        assert figures["tasks_started"] == 3
        disturbed, free = (figures["workers"][f"worker-{rank}"][12:] for rank in (0, 1))
        assert mean(disturbed, 1) < 0.75 * mean(free, 1)
        assert mean(disturbed, 3) > mean(free, 3) + 0.1
    balanced = report["schemes"]["lb-bsp:ema"]["workers"]
    assert mean(balanced["worker-0"][12:], 0) < 0.8 * mean(balanced["worker-1"][12:], 0)
    assert len(networks) == len(report["schemes"])
    left = docker("ps", "--all", "--format", "{{.Names}}") + docker("network", "ls", "--format", "{{.Name}}")
    assert not any(network in left for network in networks)  # containers' names begin with their network's


def mean(rows, column):
    """Return the mean of a column of a worker's rows: batch size, speed, predicted speed, usage."""
    return sum(row[column] for row in rows) / len(rows)
