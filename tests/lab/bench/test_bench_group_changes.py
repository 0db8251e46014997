"""`evenpace lab bench groups` in small: real processes, whose workers come and go."""

import json
from functools import partial

import pytest

from tests.evenpace.commands import invoke

run = partial(invoke, "lab", "bench", "groups", catch_exceptions=False)


@pytest.mark.release
def test_changes_and_turns_are_measured(tmp_path):
    """A change costs what its parts take at least, and a drain sends no state.

    A kill does where only one of the others has completed the reduction.
    """
    path = tmp_path / "groups.json"
    small = ("--parameters", "20000", "--workers", "2", "--turns", "2", "--repeats", "1")
    done = run(*small, "--json", str(path))
    assert done.exit_code == 0, done.output
    (size,) = json.loads(path.read_text())["sizes"]
    assert size["parameters"] == pytest.approx(20_000, rel=0.01)
    assert size["tensors"] == 8
    changes = size["changes"]
    assert {change: its["attempts"] for change, its in changes.items()} == {
        "join": 1,
        "drain": 1,
        "kill": 1,
        "kill-while-forming": 2,
    }
    for its in changes.values():
        assert its["costs_s"] == [its["cost_s"]]
        assert its["iteration_s"] > 0
        assert list(its["parts_s"]) == ["meet", "connect", "state", "compare"]
        assert 0 < sum(its["parts_s"].values()) < its["cost_s"] + its["iteration_s"]
    assert changes["join"]["parts_s"]["state"] > 0
    assert changes["drain"]["parts_s"]["state"] == 0
    unchanged = size["unchanged"]
    assert unchanged["stock_s"] > 0
    assert unchanged["job_cpu_s"] > unchanged["stock_cpu_s"] > 0  # norms are taken, and the manager is asked
    assert unchanged["job_s"] - unchanged["stock_s"] == pytest.approx(unchanged["cost_s"])  # of two turns
    low, middle, high = unchanged["ratio"]
    assert 0 < low <= middle <= high
    for text in ("19,880", "join", "drain", "stock DDP"):
        assert text in done.output
