"""`evenpace lab bench overlap` in small: real workers, shards, links and DDP."""

import json

import pytest

from tests.evenpace.commands import invoke


@pytest.mark.release
def test_all_ways_of_transferring_gradients_are_timed(tmp_path, needs_network):
    """Each way is timed, with DDP over the same links, none in less time than the links need."""
    path = tmp_path / "overlap.json"
    command = ["lab", "bench", "overlap", "--layers", "2", "--shards", "1", "--rate", "60", "--repeats", "1"]
    command += ["--iterations", "8"]
    done = invoke(*command, "--json", path, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    figures = json.loads(path.read_text())
    transfer, iteration = figures["transfer_s"], figures["iteration_s"]
    by_step, *_, rounded, stock = iteration
    megabytes = 2 * 4.15  # of both workers, pushed and at the same time pulled
    assert figures["compute_s"] == transfer[by_step] > 0.8 * megabytes / 60
    assert transfer[rounded] > 0.8 * megabytes / 60  # which are pulled as they are
    assert transfer[stock] > 0.8 * 4.15 / 60
    for way, seconds in iteration.items():
        assert seconds > 0.9 * figures["compute_s"], way
