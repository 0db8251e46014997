"""`evenpace lab experiment sharing`: what is seen of a shared cluster, and a small run on a real one."""

import json
from types import SimpleNamespace

import pytest

from lab.experiments import sharing
from tests.evenpace.commands import invoke


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A watch, and a function that has it look at leases at a time."""
    watch = sharing._Watch(tmp_path / "cluster.json")
    clock = SimpleNamespace(time=lambda: clock.now, now=0.0)
    monkeypatch.setattr(sharing, "time", clock)

    def look(now, state, **leases):
        job = {"request": {"name": "job"}, "state": state, "leases": leases}
        watch.file.write_text(json.dumps({"machine": {"jobs": [job]}}))
        clock.now = float(now)
        watch.look()

    return watch, look


def test_times_of_changes_are_seen(watched):
    """A job's first worker starts, others join; those that leave while it trains count, and suspensions."""
    watch, look = watched
    watch.look()  # nothing is kept yet
    look(10, "starting", w0=["a", "starting"])
    look(18, "running", w0=["a", "running"])
    look(20, "running", w0=["a", "running"], w1=["b", "starting"])
    look(25, "running", w0=["a", "running"], w1=["b", "running"])
    look(30, "running", w0=["a", "running"], w1=["b", "draining"])
    look(33, "running", w0=["a", "running"])
    look(40, "suspending", w0=["a", "draining"])
    look(46, "suspended")
    assert (dict(watch.starts), dict(watch.joins)) == ({"a": [8.0]}, {"b": [5.0]})
    assert (watch.leaves, watch.suspensions) == ([3.0], [6.0])
    assert watch.where == {("job", "w0"): "a", ("job", "w1"): "b"}


@pytest.mark.release  # brings up a cluster, and trains for minutes
@pytest.mark.timeout(1200)
def test_jobs_share_a_cluster_by_their_weights(tmp_path):
    """Each ends with the parameters that it has by itself, though a node is killed."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'evenpace[ray]'")
    out = tmp_path / "out.json"
    options = ("--jobs", "two", "--scale", 0.4, "--kill-after", 15, "--out", tmp_path, "--json", out)
    result = invoke("lab", "experiment", "sharing", *options, columns=200)
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    assert [(end["job"], end["batches"]) for end in figures["jobs"]] == [("one", True), ("two", True)]
    assert all(end["difference"] < 1e-9 for end in figures["jobs"])
    assert all(len(factors) == 4 for factors in figures["factors"].values())
    assert all(len(times["samples"]) == len(times["seconds"]) > 5 for times in figures["profiles"].values())
    (result,) = figures["policies"].values()
    assert (
        result["live"]["completion_s"].keys() == result["simulated"]["completion_s"].keys() == {"one", "two"}
    )
    assert (tmp_path / "weighted_fair_sharing.html").exists()
