"""`evenpace lab bench micro-batches` in small: real services, and workers that measure themselves."""

import json

import pytest

from lab.bench import micro_batches
from tests.evenpace.commands import invoke


@pytest.mark.release
def test_both_take_turns_on_the_same_micro_batches(tmp_path, monkeypatch):
    """Times are shares of plain accumulation's; memory does not grow with the number of micro-batches."""
    monkeypatch.setattr(micro_batches, "_CASES", (("digits", ("--batch-norm",), (4,)),))
    monkeypatch.setattr(micro_batches, "_MEMORY", ("transformer", (), 4))
    path = tmp_path / "figures.json"
    command = ["lab", "bench", "micro-batches", "--number", "4", "--iterations", "3", "--memory", "2,4"]
    done = invoke(*command, "--json", path, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    figures = json.loads(path.read_text())
    (case,) = figures["times"]
    assert (case["workload"], case["micro_batch"]) == ("digits", 4)
    assert case["plain_s"] > 0
    assert f"{case['iteration_share']:.1%}" in done.output
    assert f"{case['loop_share']:.1%}" in done.output
    memory = figures["memory"]
    assert memory["plain_bytes"] > 2**20  # the activations alone
    assert set(memory["of_plain"]) == {"2", "4"}
    assert max(memory["of_plain"].values()) < 1.5
    assert memory["bytes"]["4"] < 1.2 * memory["bytes"]["2"]
