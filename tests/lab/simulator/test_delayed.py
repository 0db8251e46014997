"""The live cluster's machine in virtual time, with jobs and delays that are known."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsize_manager.policies.step_times import StepTimes
from lab.simulator.delayed import Delays, NodeChange, SharedJob, simulate_delayed
from scheduler.allocation import devices
from scheduler.cluster.events import JobRequest
from scheduler.nodes import Node
from scheduler.policies import POLICIES
from scheduler.ray.cluster_settings import LIVE_POLICIES

NODES = [Node(name, "place", 1) for name in ("n0", "n1", "n2", "n3")]
SPEEDS = {"n0": 10, "n1": 20, "n2": 30, "n3": 40}  # hundredths of a batch per second; a whole one on all
BATCH = 2520 * 100  # samples, which any of the nodes can split with the same times
TIMES = {name: StepTimes((1, BATCH), (100 / speed / BATCH, 100 / speed)) for name, speed in SPEEDS.items()}


def there(*nodes):
    """Nodes that are there from the beginning."""
    return [NodeChange(0.0, node) for node in nodes]


def delays(start=0.0, join=0.0, **others):
    """Delays that are the same on all nodes."""
    return Delays(dict.fromkeys(SPEEDS, start), dict.fromkeys(SPEEDS, join), **others)


def job(name, at, iterations, *, most=4, weight=1.0, overhead=0.0):
    """A job whose iteration takes a second on all nodes."""
    return SharedJob(JobRequest(name, most, weight), at, iterations, BATCH, TIMES, overhead)


def ends(account):
    """When jobs ended, by name."""
    return {life.job: life.now for life in account.lives}


def policy(name="weighted_fair_sharing"):
    """A policy that has seen no job."""
    return POLICIES[name]()


def test_a_job_by_itself_takes_its_iterations():
    """Besides them, its start, and its end."""
    account = simulate_delayed(
        [job("one", 5, 30, overhead=0.5)], there(*NODES), policy(), delays(start=8, leave=2)
    )
    (life,) = account.lives
    assert life.started == 13
    assert life.now == pytest.approx(5 + 8 + 30 * 1.5 + 2)
    assert life.how == "done"


def test_a_part_of_another_size_takes_its_own_time():
    """Two equal nodes are less than twice as fast as one where half a batch takes more than half the time."""
    times = StepTimes((10, 50, 100), (1.0, 3.0, 4.0))
    its = SharedJob(JobRequest("one", 2, 1.0), 0, 10, 100, dict.fromkeys(("a", "b", "c"), times), 0.5)
    assert [its.seconds(nodes) for nodes in (["a"], ["a", "b"])] == [4.5, 3.5]
    # 34, 33 and 33 samples; the node with the slower times takes fewer.
    assert its.seconds(["a", "b", "c"]) == pytest.approx(0.5 + 1 + 2 * 24 / 40)


def test_a_record_that_lies_about_does_not_count(tmp_path, monkeypatch):
    """A simulation reads nothing, wherever it runs."""
    monkeypatch.chdir(tmp_path)
    before = simulate_delayed([job("one", 0, 30)], there(*NODES), policy(), delays())
    line = {"time": -100.0, "job": "other", "submitted": -100.0, "state": "waiting", "held": False}
    (tmp_path / "history.jsonl").write_text(
        json.dumps(line | {"devices": {}, "attempt": 0, "why": "submitted"}) + "\n"
    )
    assert simulate_delayed([job("one", 0, 30)], there(*NODES), policy(), delays()) == before


def test_a_job_grows_while_it_trains_and_shrinks_before_another_starts():
    """The second has three of four by its weight; they are free a while after the first has let them go."""
    jobs = [job("one", 0, 100), job("two", 20, 30, weight=2.0)]
    account = simulate_delayed(jobs, there(*NODES), policy(), delays(start=10, join=5, leave=3))
    one, two = account.lives
    (kept,) = {placement[0][0] for start, _, placement in one.spans if devices(placement) == 1}
    rest = 100.0 - SPEEDS[kept]
    assert two.started == 20 + 3 + 10
    two_ends = 20 + 3 + 10 + 30 * 100 / rest + 3
    assert two.now == pytest.approx(two_ends)
    # From 10 to 20 it has all nodes, then one, and all again once three have joined.
    done = 10 + (two_ends + 5 - 20) * SPEEDS[kept] / 100
    assert one.now == pytest.approx(two_ends + 5 + (100 - done) + 3)


def test_a_loss_stops_a_job_until_it_is_seen():
    """Then it goes on with the others."""
    lost = NodeChange(20.0, NODES[3], lost=True)
    account = simulate_delayed([job("one", 0, 50)], [*there(*NODES), lost], policy(), delays(loss=7))
    assert ends(account) == {"one": pytest.approx(20 + 7 + 30 * 100 / 60)}


def test_a_node_that_comes_is_used():
    """The job goes on while a worker starts there."""
    comes = NodeChange(10.0, NODES[3])
    account = simulate_delayed([job("one", 0, 50)], [*there(*NODES[:3]), comes], policy(), delays(join=5))
    assert ends(account) == {"one": pytest.approx(15 + (50 - 15 * 0.6))}


def test_a_suspended_job_goes_on_where_it_was():
    """With tiresias, who has had 16 device-hours gives way; no iteration is computed twice."""
    jobs = [job("long", 0, 16_000), job("short", 15_000, 20)]
    account = simulate_delayed(jobs, there(*NODES), policy("tiresias"), delays(start=10, suspend=5, leave=2))
    long, short = account.lives
    assert long.suspensions == 1
    # Three nodes are free after 2 s, the slowest after 5; 14,990 iterations are done by then.
    assert short.now == pytest.approx(15_000 + 5 + 10 + (20 * 100 - 3 * 90) / 100 + 2)
    assert long.now == pytest.approx(short.now + 10 + 1010 + 2)


def test_jobs_that_cannot_end_are_an_error():
    """And no simulation without an end."""
    lost = [NodeChange(1.0, node, lost=True) for node in NODES]
    with pytest.raises(ValueError, match="do not come to an end"):
        simulate_delayed([job("one", 0, 50)], [*there(*NODES), *lost], policy(), delays())


@given(
    st.lists(
        st.tuples(st.integers(0, 100), st.integers(1, 60), st.integers(1, 4), st.sampled_from([1.0, 5.0])),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(LIVE_POLICIES),
    st.tuples(*[st.sampled_from([0.0, 0.5, 7.0])] * 5),
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 3)), max_size=3, unique_by=lambda its: its[1]),
)
def test_devices_are_had_once_and_all_jobs_end(drawn, name, seconds, losses):
    """Whatever comes, as one node stays; no job ends before all devices could have computed it."""
    jobs = [
        job(f"job-{number}", at, iterations, most=most, weight=weight)
        for number, (at, iterations, most, weight) in enumerate(drawn)
    ]
    start, join, leave, suspend, loss = seconds
    changes = [NodeChange(float(at), NODES[number], lost=True) for at, number in losses]
    their = delays(start, join, leave=leave, suspend=suspend, loss=loss)
    account = simulate_delayed(jobs, [*there(*NODES), *changes], policy(name), their)
    assert {life.how for life in account.lives} == {"done"}
    for its in jobs:
        (life,) = [life for life in account.lives if life.job == its.request.name]
        assert life.lasted >= its.iterations + start + leave - 1e-6
    moments = sorted({start for life in account.lives for start, _, _ in life.spans})
    for moment in moments:
        had = [
            node
            for life in account.lives
            for start, end, placement in life.spans
            if start <= moment < end
            for node, count in placement
            for _ in range(count)
        ]
        assert len(had) == len(set(had))
