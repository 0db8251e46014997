"""Benchmarks in small, by their commands: real services, workers and faults."""

import json

import pytest
from rich.console import Console

from lab.bench import recovery
from lab.bench.recovery import RecoveryConfig
from tests.evenpace.commands import invoke

SHARDS = "shards --shards 1,2 --workers 2 --mib 1 --rate 4 --repeats 2"
OVERLAP = "overlap --layers 2 --shards 1 --rate 60 --repeats 1 --iterations 8"


def run(folder, line):
    """Run a benchmark; return its figures."""
    path = folder / "figures.json"
    done = invoke("lab", "bench", *line.split(), "--json", path, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(path.read_text())


@pytest.mark.release
@pytest.mark.parametrize("options", ["", " --adam"])
def test_norms_of_gradients_take_less_time_than_the_passes_of_each_model(tmp_path, options):
    """Each way to measure the noise is timed."""
    for its in run(tmp_path, f"noise --repeats 1{options}")["models"].values():
        assert list(its["norms"]) == ["parameter server", "ranks", "micro-batches"]
        for name, way in its["norms"].items():
            whole = its["seconds_in_micro_batches" if name == "micro-batches" else "seconds"]
            assert 0 < way["seconds"] < whole


@pytest.mark.release
@pytest.mark.usefixtures("needs_network")
def test_no_transfer_is_faster_than_its_links(tmp_path):
    """Neither over several shards at once, nor beside the backward pass, nor of stock DDP."""
    for row in run(tmp_path, SHARDS)["measured"]:
        assert row["fastest_s"] > 0.8 * row["ideal_s"]  # the bucket holds a little
    seconds = run(tmp_path, OVERLAP)["transfer_s"]
    *ours, stock = seconds.values()
    assert min(ours) > 0.8 * 2 * 4.15 / 60  # of both workers, pushed and at the same time pulled
    assert stock > 0.8 * 4.15 / 60


@pytest.mark.release
def test_each_change_of_a_group_costs_what_its_parts_take_at_least(tmp_path):
    """A drain sends no state; a kill does where only one of the others has completed the reduction."""
    small = "groups --parameters 20000 --workers 2 --turns 2 --repeats 1"
    (size,) = run(tmp_path, small)["sizes"]
    changes = size["changes"]
    assert [its["attempts"] for its in changes.values()] == [1, 1, 1, 2]
    for its in changes.values():
        assert 0 < sum(its["parts_s"].values()) < its["cost_s"] + its["iteration_s"]
    assert changes["join"]["parts_s"]["state"] > 0 == changes["drain"]["parts_s"]["state"]


@pytest.mark.release
def test_no_step_is_taken_back_without_a_shards_death():
    """Whether a worker or the manager goes; a frozen worker is waited for until it counts as silent."""
    death, freeze = "a shard is killed", "a worker freezes, and comes back"
    events = (
        "a worker is killed",
        "a worker joins",
        freeze,
        "the manager vanishes, and closes no connection",
        death,
    )
    config = RecoveryConfig(away=0.5, checkpoint_every=1000, repeats=1, events=events)
    costs = recovery.run(config, Console(quiet=True))["costs"]
    assert [costs[event]["redone"] for event in events[:-1]] == [0] * 4
    assert costs[death]["redone"] > 50  # there was no checkpoint but the first
    assert costs[freeze]["still_s"] > 5.0  # silence is ten seconds, less a heartbeat
