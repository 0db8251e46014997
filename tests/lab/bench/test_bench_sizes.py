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
