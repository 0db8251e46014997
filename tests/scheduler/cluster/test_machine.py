"""The machine of a live cluster: whatever happens, and one thing at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cluster.events import (
    Add,
    Begin,
    Cancelled,
    Decide,
    Decided,
    JobRequest,
    NodeJoined,
    NodeLost,
    Say,
    Submitted,
    Tick,
    WorkerGone,
    WorkerJoined,
)
from scheduler.cluster.machine import ClusterMachine
from scheduler.nodes import Node
from tests.scheduler.cluster.random_cluster import RandomCluster


@given(st.integers(0, 2**32))
def test_whatever_happens_no_node_is_full_no_state_is_lost_and_all_jobs_end(seed):
    """`RandomCluster` checks it at each moment; what was recorded leads to the same actions again."""
    cluster = RandomCluster(seed)
    cluster.run()
    cluster.replay()


# -- one thing at a time


def machine_with(*nodes):
    """Return a machine with nodes of one device each."""
    machine = ClusterMachine()
    for name in nodes:
        machine.handle(0, NodeJoined(Node(name, "cpu", 1)))
    return machine


def asked(actions):
    """Return what the policy is asked."""
    (question,) = [action for action in actions if isinstance(action, Decide)]
    return question


def decide(machine, now, event, placements):
    """Tell an event, let the policy answer, and return what is to be done then."""
    return machine.handle(now, Decided(asked(machine.handle(now, event)).number, placements))


def said(actions):
    """Return what followers are told."""
    return [action.text for action in actions if isinstance(action, Say)]


def test_a_node_on_which_no_worker_starts_is_tried_later_each_time():
    """After 1 s, 2 s, 4 s, and never more than a minute; a worker that starts is the first again."""
    machine = machine_with("a")
    actions = decide(machine, 0, Submitted(JobRequest("x", 1)), {"x": (("a", 1),)})
    assert actions == [Begin("x", 1), Add("x", 1, "w0", "a")]
    for now, worker, again in ((1, "w0", 2), (2, "w1", 4), (4, "w2", 8)):
        assert machine.handle(now, WorkerGone("x", 1, worker)) == []
        assert machine.next_tick == again
        assert machine.handle(again - 0.1, Tick()) == []
        assert machine.handle(again, Tick()) == [Add("x", 1, f"w{int(worker[1]) + 1}", "a")]
    for _ in range(2000):
        machine.jobs["x"].back_off("b", 8)
    assert machine.jobs["x"].again["b"] == 8 + 60
    machine.handle(9, WorkerJoined("x", 1, "w3"))
    machine.handle(10, WorkerGone("x", 1, "w3"))
    assert machine.jobs["x"].attempt == 1
    assert [lease.node for lease in machine.jobs["x"].leases.values()] == ["a"]


def test_a_job_asks_for_no_more_than_the_cluster_has():
    """It is said once for each number of devices."""
    machine = machine_with("a", "b")
    actions = machine.handle(0, Submitted(JobRequest("x", 5)))
    assert (asked(actions).round.jobs[0].devices, asked(actions).round.jobs[0].most_devices) == (2, 2)
    assert said(actions) == ["x asks for 5 devices: the cluster has 2 now"]
    machine.handle(1, Decided(asked(actions).number, {}))
    assert said(machine.handle(2, NodeLost("a"))) == ["x asks for 5 devices: the cluster has 1 now"]
    assert said(machine.handle(100, Tick())) == []


@pytest.mark.parametrize(
    ("placements", "error", "text"),
    [
        (
            None,
            "division by zero",
            "the policy has failed, and what it decided last stands: division by zero",
        ),
        (
            {"x": (("a", 2),)},
            "",
            "the policy's answer is impossible, and what it decided last stands: 2 devices of node 'a' were "
            "given away; it has 1",
        ),
    ],
)
def test_what_a_policy_decided_last_stands_where_it_fails(placements, error, text):
    """Jobs go on with what they have."""
    machine = machine_with("a")
    decide(machine, 0, Submitted(JobRequest("x", 1)), {"x": (("a", 1),)})
    machine.handle(1, WorkerJoined("x", 1, "w0"))
    question = asked(machine.handle(100, Tick()))
    assert machine.handle(101, Decided(question.number, placements, error)) == [Say(text)]
    assert machine.target == {"x": (("a", 1),)}


def test_one_name_is_one_job():
    """Who submits again for want of an answer changes nothing; another job of the name is refused."""
    machine = machine_with("a")
    machine.handle(0, Submitted(JobRequest("x", 1)))
    assert machine.handle(1, Submitted(JobRequest("x", 1))) == []
    assert machine.handle(2, Submitted(JobRequest("x", 2))) == [Say("x: there is another job of this name")]
    machine.handle(3, Cancelled("x"))
    assert (machine.jobs["x"].state, machine.jobs["x"].how) == ("ended", "cancelled")
