"""`evenpace lab bench nodes` and `evenpace lab bench spot`: nodes of real Ray clusters that are lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lab.bench.ray_job import Progress
from lab.bench.spot_market import Event, take_nodes


@pytest.mark.release
def test_costs_of_lost_nodes():
    """Whatever is lost, the job goes on with one process's parameters; of the head, its state."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'evenpace[ray]'")
    from lab.bench import node_losses

    config = node_losses.NodesConfig(shards=1, checkpoint_every=1000, silence=3.0, repeats=1)
    figures = node_losses.run(config, Console(quiet=True))
    costs = figures["costs"]
    assert figures["equal"]
    assert list(costs) == ["worker", "shard", "manager", "controller", "head"]
    assert [costs[name]["redone"] for name in ("worker", "manager", "controller")] == [0, 0, 0]
    assert costs["shard"]["redone"] > 20  # there was no checkpoint but the first
    assert costs["manager"]["still_s"] > 3.0  # the silence
    assert costs["head"]["attempts"] >= 1


@given(
    st.lists(
        st.builds(Event, st.floats(0, 100), st.sampled_from(("join", "loss")), st.sampled_from("abcdef"))
    ),
    st.integers(1, 4),
)
def test_a_replay_has_so_many_nodes_at_most(events, most):
    """Each is lost after it has joined, and joins when it is not there."""
    there = set()
    for event in take_nodes(events, most):
        if event.kind == "join":
            assert event.node not in there
            there.add(event.node)
        else:
            there.remove(event.node)
        assert len(there) <= most


def test_progress_is_read_from_journals(tmp_path):
    """Steps count once, those that were taken back as well, and a half line when it is whole."""
    progress = Progress(tmp_path)
    first, second = tmp_path / "w0-1.jsonl", tmp_path / "w1-2.jsonl"
    first.write_text('["reached",0,0,null]\n["computed",0,0,0,50,1]\n["reached",0,1,null]\n["rea')
    progress.look()
    assert (progress.version, progress.computed, progress.computed_samples) == (1, {"w0": 0}, 50)
    with first.open("a") as stream:
        stream.write('ched",0,7,null]\n')
    second.write_text('["computed",0,6,50,46,1]\n["reached",0,6,null]\n')
    progress.look()
    assert (progress.version, progress.redone, progress.computed) == (7, 0, {"w0": 0, "w1": 6})
    second.write_text(second.read_text() + '["reached",1,4,null]\n["reached",1,5,null]\n')
    progress.look()
    with first.open("a") as stream:
        stream.write('["reached",0,8,null]\n')  # of the attempt before
    progress.look()
    assert (progress.attempt, progress.version, progress.redone) == (1, 5, 3)
