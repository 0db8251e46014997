"""`evenpace lab bench sizes` in small: real services, and workers whose schedule changes the size."""

import json

import pytest

from tests.evenpace.commands import invoke


@pytest.mark.release
def test_changes_start_no_attempt_and_discard_no_plan(tmp_path):
    """All changes come where they are due, and no more plans are made than iterations, but those ahead."""
    path = tmp_path / "sizes.json"
    command = ["lab", "bench", "sizes", "--epochs", "24", "--repeats", "1", "--json", str(path)]
    done = invoke(*command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    ways = json.loads(path.read_text())["ways"]
    assert list(ways) == ["no lookahead", "lookahead", "state"]
    for name, its in ways.items():
        assert its["changes"] == 11  # before each second of 24 epochs
        assert its["attempts"] == 0
        assert 0 <= its["plans_beyond"] < 11, name  # at the end some are planned for nobody
        for when in ("computed", "planned"):
            one = its[when]
            low, middle, high = one["changed_s"]
            assert 0 < low <= middle <= high
            assert len(one["ratios"]) == len(one["floors"]) == 1
            assert one["ratio"] == pytest.approx(middle / one["without_s"][1])


@pytest.mark.ci
def test_plans_of_each_sizer_are_timed(tmp_path):
    """Of the sizers, those that go by what is measured change the size."""
    path = tmp_path / "sizers.json"
    command = ["lab", "bench", "sizers", "--workers", "4", "--iterations", "40", "--json", str(path)]
    done = invoke(*command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for by_name in json.loads(path.read_text())["times"].values():
        assert by_name["fixed"]["changes"] == 0
        assert by_name["similarity"]["changes"] > 0
        assert by_name["goodput"]["changes"] > 0
        assert all(0 < its["median_s"] <= its["longest_s"] for its in by_name.values())
