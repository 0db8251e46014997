"""The record of a cluster: what it says of jobs is what the machine knows, whatever happened."""

import json
from dataclasses import asdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.allocation import devices
from scheduler.cluster.events import Ended, Held, JobRequest, NodeLost, Submitted, WorkerGone
from scheduler.cluster.history import (
    History,
    JobLine,
    NodesLine,
    account,
    newer_half,
    read,
    reasons,
)
from scheduler.cluster.jobs import Lease, LiveJob
from scheduler.cluster.machine import ClusterMachine
from tests.scheduler.cluster.random_cluster import RandomCluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for records."""
    return tmp_path_factory.mktemp("records")


def nodes_of(machine):
    """The nodes as the record has them."""
    return {name: ("", node.devices) for name, node in machine.nodes.items()}


def recorded(seed, file):
    """The machine of a random cluster at its end, and the record that was written of it."""
    file.unlink(missing_ok=True)
    cluster = RandomCluster(seed)
    cluster.run()
    machine, history = ClusterMachine.restored(json.loads(cluster.first)), History(file)
    for now, event, said in cluster.record:
        if event is None:  # its process was started again
            machine, history = ClusterMachine.restored(json.loads(said)), History(file)
            continue
        why = reasons(event, machine.jobs, {})
        machine.handle(now, event)
        history.note(now, machine.jobs, nodes_of(machine), {name: why.get(name, "") for name in machine.jobs})
        history.write()
    assert read(file) == history.lines
    return machine, history.lines


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_record_says_what_the_machine_knows(folder, seed):
    """Of each job, also where the machine was killed; no node gives out more than it has."""
    machine, lines = recorded(seed, folder / "known.jsonl")
    past = account(lines, lines[-1].time)
    lives = {life.job: life for life in past.lives}

    assert lives.keys() == machine.jobs.keys()
    for name, job in machine.jobs.items():
        life = lives[name]
        assert life.device_seconds == pytest.approx(job.attained)
        assert (life.submitted, life.started, life.ended) == (job.submitted, job.started, job.ended)
        assert (life.state, life.how) == (job.state, job.how)
        assert life.waited >= -1e-6
        assert all(one.end <= other.start for one, other in pairwise(life.spans))
    assert 0 < past.utilisation <= 1 + 1e-9
    for at in {span.start for life in past.lives for span in life.spans}:
        held = [span.placement for life in past.lives for span in life.spans if span.start <= at < span.end]
        for node in past.cluster.nodes:
            assert sum(dict(placement).get(node.name, 0) for placement in held) <= node.devices
    check_newer_half(lines)


def check_newer_half(lines):
    """What jobs and nodes had at its beginning is there, and device-seconds from then on add up."""
    half = newer_half(lines)
    cut, end = half[0].time, lines[-1].time
    whole, newer = account(lines, end), account(half, end)

    assert len(half) < len(lines)
    for life in newer.lives:
        (before,) = (its for its in whole.lives if its.job == life.job)
        since = sum(
            (span.end - max(span.start, cut)) * devices(span.placement)
            for span in before.spans
            if span.end > cut
        )
        assert life.device_seconds == pytest.approx(since)
    left_out = {life.job for life in whole.lives} - {life.job for life in newer.lives}
    assert all(life.ended <= cut for life in whole.lives if life.job in left_out)


def test_a_record_that_cannot_be_written_is_written_later(tmp_path, caplog):
    """It fails nobody; nothing of it is lost once it can be, and another process goes on with it."""
    file = tmp_path / "gone" / "history.jsonl"
    history, jobs = History(file), {"a": LiveJob(JobRequest("a", 1), 1.0)}
    history.note(1.0, jobs, {"n": ("host", 2)}, {"a": "submitted"})
    history.write()
    assert "cannot be written" in caplog.text
    file.parent.mkdir()
    jobs["a"].leases["w0"] = Lease("n")
    history.note(2.0, jobs, {"n": ("host", 2)}, {"a": "decided"})
    history.write()
    again = History(file)
    assert again.note(3.0, jobs, {"n": ("host", 2)}, {"a": "nothing has changed"}) == []
    assert again.lines == [
        NodesLine(1.0, {"n": ("host", 2)}),
        JobLine(1.0, "a", 1.0, "waiting", False, {}, 0, "submitted"),
        JobLine(2.0, "a", 1.0, "waiting", False, {"n": 1}, 0, "decided"),
    ]


def test_a_record_is_bounded(tmp_path, monkeypatch):
    """It has as many lines as it may have at most, and jobs that go on are in it."""
    monkeypatch.setattr("scheduler.cluster.history._MOST", 20)
    history, jobs = History(tmp_path / "history.jsonl"), {}
    for name in ("quiet", "busy"):
        jobs[name] = LiveJob(JobRequest(name, 1), 0.0)
    for time in range(100):
        jobs["busy"].held = not jobs["busy"].held
        history.note(float(time), jobs, {"n": ("host", 2)}, dict.fromkeys(jobs, ""))
        history.write()
        assert len(read(tmp_path / "history.jsonl")) <= 20
    assert {life.job for life in account(read(tmp_path / "history.jsonl"), 100.0).lives} == jobs.keys()


def test_while_the_scheduler_is_away_nobody_has_anything():
    """Neither devices nor jobs' use of them count, until it says again what is there."""
    history, job = History.__new__(History), LiveJob(JobRequest("a", 1), 0.0, "running")
    job.leases["w0"] = Lease("n")
    history.lines, history._nodes, history._jobs = [], {}, {}
    for time, away in ((0.0, 10.0), (50.0, None)):
        history.note(time, {"a": job}, {"n": ("host", 2)}, {"a": ""})
        if away is not None:
            history.interrupt(away)
    past = account(history.lines, 60.0)
    assert (past.capacity, past.lives[0].device_seconds, past.utilisation) == (40, 20, 0.5)


def test_a_clock_that_is_set_back_takes_no_time_away():
    """What was had before counts, and nothing less than nothing afterwards."""
    lines = [
        NodesLine(10.0, {"n": ("host", 2)}),
        JobLine(12.0, "a", 12.0, "running", False, {"n": 1}, 1, ""),
        JobLine(15.0, "a", 12.0, "running", False, {"n": 2}, 1, ""),
        JobLine(8.0, "a", 12.0, "ended", False, {}, 1, "", "done"),
    ]
    past = account(lines, 9.0)
    assert (past.now, past.capacity, past.lives[0].device_seconds, past.completions) == (15, 10, 3, [3])


def test_what_is_not_a_record_is_named(tmp_path):
    """By file and line; a last line without an end is being written."""
    file = tmp_path / "history.jsonl"
    good = json.dumps(asdict(JobLine(1.0, "a", 1.0, "waiting", False, {}, 0, "submitted")))
    file.write_text(f"{good}\n{good[:20]}")
    assert len(read(file)) == 1
    for bad in ("{}", "[]", good[:20], good.replace("1.0", '"1"'), '{"time": 1, "nodes": {"n": 3}}'):
        file.write_text(f"{good}\n{bad}\n")
        with pytest.raises(ValueError, match=r"history\.jsonl: line 2 is not of the record"):
            read(file)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Submitted(JobRequest("b", 1)), {"b": "submitted"}),
        (Held("a", True), {"a": "paused by its user"}),
        (Held("a", False), {"a": "resumed by its user"}),
        (WorkerGone("a", 1, "w0"), {"a": "w0 has ended"}),
        (WorkerGone("a", 1, "w1"), {}),  # it was told to go
        (NodeLost("n"), {"a": "node 10.0.0.1 is lost"}),
        (NodeLost("m"), {}),
        (Ended("a", 1, "failed", "boom\nat line 1\nValueError"), {"a": "boom ValueError"}),
    ],
)
def test_why_a_job_changes(event, why):
    """What an event says of the jobs that it is about."""
    leases = {"w0": Lease("n", "running"), "w1": Lease("n", "draining")}
    job = LiveJob(JobRequest("a", 2), 0.0, "running", leases=leases)
    assert reasons(event, {"a": job}, {"n": "10.0.0.1"}) == why
