"""The comparison of sizers by real trainings, short ones."""

import json

import pytest

from tests.evenpace.commands import invoke


@pytest.mark.ci
def test_each_sizer_trains_to_the_loss_with_its_sizes(tmp_path):
    """Batches of one size, and of sizes within the bounds; JSON has all epochs, and the picture is there."""
    result = invoke(
        *("lab", "experiment", "sizers", "--runs", "fixed:none,goodput:adascale", "--loss", 0.3),
        *("--batch-size", 16, "--most", 64, "--json", tmp_path / "figures.json"),
        *("--plot", tmp_path / "sizers.png"),
    )
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (tmp_path / "sizers.png").read_bytes().startswith(b"\x89PNG")
    fixed, grown = figures["runs"]
    assert {epoch["size"] for epoch in fixed["epochs"]} == {16}
    assert all(16 <= epoch["size"] <= 64 for epoch in grown["epochs"])
    for one in (fixed, grown):
        losses = [epoch["loss"] for epoch in one["epochs"]]
        assert losses[-1] < 0.3 <= min(losses[:-1])
        seconds = [epoch["seconds"] for epoch in one["epochs"]]
        assert seconds == sorted(seconds)
    first, second = figures["sizers"]
    assert first["times_as_fast"] == 1.0
    assert second["times_as_fast"] == pytest.approx(first["seconds"] / second["seconds"])
