"""The machine of a live cluster: whatever happens, and with one of its rules taken out."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cluster.events import (
    Add,
    Begin,
    Cancelled,
    Decide,
    Decided,
    Drain,
    Ended,
    JobRequest,
    NodeJoined,
    NodeLost,
    Say,
    Submitted,
    Suspended,
    Tick,
    WorkerGone,
    WorkerJoined,
)
from scheduler.cluster.machine import ClusterMachine
from scheduler.nodes import Node
from tests.scheduler.cluster.random_cluster import RandomCluster, Shuffled, ViolationError


@given(st.integers(0, 2**32))
def test_whatever_happens_no_node_is_full_no_state_is_lost_and_all_jobs_end(seed):
    """`RandomCluster` checks it at each moment; what was recorded leads to the same actions again."""
    cluster = RandomCluster(seed)
    cluster.run()
    cluster.replay()


# -- machines with a rule taken out


class FreesAtDrain(ClusterMachine):
    """Gives a device out again as soon as its worker is told to go."""

    def _reconcile(self):
        for job in self.jobs.values():
            if job.trains:
                job.leases = job.kept
        super()._reconcile()


class ReusesNames(ClusterMachine):
    """Gives a worker the name of one that has gone."""

    def _grow(self, name, job, free):
        job.made = next(number for number in range(100) if f"w{number}" not in job.leases)
        before = dict(job.leases)
        super()._grow(name, job, free)
        job.leases = before | job.leases


class ForgetsAttempts(ClusterMachine):
    """Takes what it is told of an earlier attempt for the present one's."""

    def handle(self, now, event):
        """Handle the event as one of the present attempt."""
        if isinstance(event, WorkerJoined | WorkerGone | Suspended | Ended) and event.job in self.jobs:
            event = replace(event, attempt=self.jobs[event.job].attempt)
        return super().handle(now, event)


class WaitsForEver(ClusterMachine):
    """Lets a job wait for a device that another has which waits likewise."""

    def _comes_free(self, node, excess, living):
        return True


class DrainsTheLast(ClusterMachine):
    """Drains a job's last worker, where its next has yet to train."""

    def _release(self, name, job, excess):
        for worker in excess:
            job.leases[worker].phase = "draining"
            self._actions.append(Drain(name, job.attempt, worker))


class TrustsThePolicy(ClusterMachine):
    """Takes an answer as it is, whatever has happened since the question."""

    def _hear_policy(self, event):
        if event.placements is not None:
            self.target = {job: placement for job, placement in event.placements.items() if placement}
        self._deciding = False
        if self._stale:
            self._ask()


class TakesAskedForDone(ClusterMachine):
    """Asks for nothing again after a restart."""

    def _repeat(self, name, job):
        pass


def crossing(seed, machine):
    """Return a cluster in which jobs have to change places, and nothing else happens."""
    policies = [lambda: Shuffled(seed, stays=True)]
    return RandomCluster(seed, machine, jobs=8, faults=False, policies=policies)


FOUND = {
    "controllers take workers that are over": (partial(RandomCluster, fenced=False), 0),
    "devices are free at the drain": (partial(RandomCluster, machine=FreesAtDrain), 0),
    "names come again": (partial(RandomCluster, machine=ReusesNames), 0),
    "attempts do not count": (partial(RandomCluster, machine=ForgetsAttempts), 30),
    "nobody gives way": (partial(crossing, machine=WaitsForEver), 30),
    "the last worker goes": (partial(crossing, machine=DrainsTheLast), 30),
    "the policy is trusted": (partial(RandomCluster, machine=TrustsThePolicy), 0),
    "a restart asks for nothing": (partial(RandomCluster, machine=TakesAskedForDone), 0),
}
"""What a machine lacks: how its clusters are made, and a seed after which one soon misses it."""


@pytest.mark.parametrize("lack", FOUND)
def test_a_rule_that_is_taken_out_is_missed(lack):
    """Else the clusters above would show little."""
    make, first = FOUND[lack]
    clusters = (make(seed) for seed in range(first, first + 100))
    with pytest.raises((ViolationError, KeyError)):
        any(cluster.run() for cluster in clusters)


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


def test_the_last_jobs_that_have_ended_are_remembered():
    """So that what is kept does not grow for ever."""
    machine = ClusterMachine()
    for number in range(150):
        machine.handle(number, Submitted(JobRequest(f"j{number}", 1)))
        machine.handle(number, Cancelled(f"j{number}"))
    assert list(machine.jobs) == [f"j{number}" for number in range(50, 150)]


@pytest.mark.parametrize("before", [0, 3])
def test_a_job_that_has_ended_may_be_submitted_again(before):
    """As the next attempt of those that there were, whose results tell them apart, or of a forgotten one."""
    machine = ClusterMachine()
    machine.handle(0, NodeJoined(Node("north", "cpu", 1)))
    for number in (1, 2):
        attempt = before + number
        request = JobRequest("job", 1, weight=attempt)
        (question,) = machine.handle(attempt, Submitted(request, before if number == 1 else 0))
        assert machine.handle(attempt, Submitted(request)) == [], "it is asked again"
        begin, add = machine.handle(attempt, Decided(question.number, {"job": (("north", 1),)}))
        assert (begin, add) == (Begin("job", attempt), Add("job", attempt, f"w{number - 1}", "north"))
        machine.handle(attempt, Ended("job", attempt, "failed"))
    assert [(job.attempt, job.how) for job in machine.jobs.values()] == [(before + 2, "failed")]
