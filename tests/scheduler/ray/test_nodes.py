"""Jobs on Ray clusters of several nodes, which freeze, die, and are about to go."""

import contextlib
import tempfile

import psutil
import pytest

from tests.scheduler.ray.submitted import FormedGroup, Jobs
from tests.scripts.train_least_squares import SPEC

pytest.importorskip("ray", reason="Ray is not installed: pip install 'evenpace[ray]'")

from lab.ray_nodes import RayNode

pytestmark = [pytest.mark.slow, pytest.mark.release]

WORKERS = ("--cpus-per-worker", 0, "--resource", "place=1")
"""Options of jobs whose workers run on nodes that have places."""

SERVICES = ("--service-resource", "steady=1")
"""Options of jobs whose services run on nodes that are steady."""


@pytest.fixture
def head(tmp_path):
    """The head of a cluster, on which services run and no worker."""
    with (
        tempfile.TemporaryDirectory(prefix="evenpace-", ignore_cleanup_errors=True) as temporary,
        RayNode("head", tmp_path, cpus=0, resources={"steady": 9}, environment={"TMPDIR": temporary}) as node,
    ):
        yield node


@pytest.fixture
def add_node(head, tmp_path):
    """Add a node to the cluster that has places for workers, and else nothing."""
    with contextlib.ExitStack() as nodes:
        yield lambda name, places=1: nodes.enter_context(
            RayNode(name, tmp_path, head, cpus=0, resources={"place": places})
        )


@pytest.fixture
def jobs(head, tmp_path):
    """Commands about jobs on the cluster."""
    return Jobs(tmp_path, head.environment, head.address)


def node_of(process, nodes):
    """The node that a process runs on."""
    return next(node for node in nodes if process in node.processes)


def running(jobs, name, wait_until):
    """Wait until a job trains."""
    wait_until(lambda: "joined, for iteration 0" in jobs.log(name, "manager"), "a member")
    wait_until(lambda: len(jobs.processes(name)) == 4, "the start of all")


def test_a_worker_on_a_frozen_node_gives_way(jobs, add_node, wait_until):
    """Another takes its place and its name; when the node thaws, the old one ends and disturbs nothing."""
    nodes = [add_node("one"), add_node("two"), add_node("spare")]
    with jobs.submit("frozen", *WORKERS, *SERVICES, iterations=1500, pace=0.02) as command:
        running(jobs, "frozen", wait_until)
        (old,) = jobs.processes("frozen", "w1")
        node = node_of(old, nodes)
        node.freeze()
        wait_until(lambda: "w1 is lost" in jobs.log("frozen"), "its loss")
        wait_until(lambda: jobs.log("frozen", "manager").count("w1 joined") == 2, "another w1")
        node.thaw()
        wait_until(lambda: not old.is_running() or old.status() == psutil.STATUS_ZOMBIE, "the end of the old")
        assert [one.pid for one in jobs.processes("frozen", "w1")] != [old.pid]
        assert command.end() == 0, command.text
    assert "failure" not in command.text
    assert jobs.log("frozen", "manager").count("w1 joined") == 2
    jobs.assert_trained("frozen", 1500)


def test_workers_leave_a_node_that_is_about_to_go(jobs, add_node, wait_until):
    """They are drained and start elsewhere; nothing is computed twice, and the node's end costs nothing."""
    nodes = [add_node("one"), add_node("two")]
    with jobs.submit("notice", *WORKERS, *SERVICES, iterations=1200, pace=0.02) as command:
        running(jobs, "notice", wait_until)
        (old,) = jobs.processes("notice", "w1")
        node = node_of(old, nodes)
        add_node("spare")
        node.announce_end(12)
        wait_until(lambda: "w1 has left its node" in jobs.log("notice"), "its leave")
        node.kill()
        wait_until(lambda: jobs.log("notice", "manager").count("w1 joined") == 2, "another w1")
        assert command.end() == 0, command.text
    assert "failure" not in command.text
    assert jobs.computed("notice") == samples(1200)
    jobs.assert_trained("notice", 1200)


def test_a_formed_group_leaves_a_node_and_loses_another(jobs, add_node, wait_until):
    """All-reduce goes on with those that are left, and with new ones: the parameters are one process's."""
    nodes = [add_node("one"), add_node("two"), add_node("three")]
    with FormedGroup(jobs, "formed", wait_until, *WORKERS, *SERVICES, "--workers", 3) as group:
        group.trains_with("w0", "w1", "w2")
        node = node_of(jobs.processes("formed", "w1")[0], nodes)
        node.announce_end(12)
        group.trains_with("w0", "w2")
        node.kill()
        add_node("four")
        group.trains_with("w0", "w1", "w2")
        node_of(jobs.processes("formed", "w2")[0], nodes).kill()
        group.trains_with("w0", "w1")
        add_node("five")
        group.trains_with("w0", "w1", "w2")
        group.end()
    assert "failure" not in group.text


def test_services_leave_a_node_that_is_about_to_go(tmp_path, wait_until):
    """The manager and a shard move while the job is paused; nothing is computed twice."""
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="evenpace-", ignore_cleanup_errors=True)
        )
        head = stack.enter_context(RayNode("head", tmp_path, cpus=0, environment={"TMPDIR": temporary}))
        stack.enter_context(RayNode("workers", tmp_path, head, cpus=0, resources={"place": 2}))
        first = stack.enter_context(RayNode("first", tmp_path, head, cpus=0, resources={"steady": 3}))
        jobs = Jobs(tmp_path, head.environment, head.address)
        with jobs.submit("moves", *WORKERS, *SERVICES, "--shards", 2, iterations=1200, pace=0.02) as command:
            wait_until(lambda: "running, iteration" in command.text, "an iteration")
            stack.enter_context(RayNode("second", tmp_path, head, cpus=0, resources={"steady": 3}))
            first.announce_end(60)
            moved = [f"{name} has left its node" for name in ("manager", "ps-0", "ps-1")]
            wait_until(lambda: all(one in jobs.log("moves") for one in moved), "their leave")
            first.kill()
            assert command.end() == 0, command.text
    assert "failure" not in command.text
    assert jobs.computed("moves") == samples(1200)
    jobs.assert_trained("moves", 1200)


def test_the_heads_loss_is_told(head, jobs, add_node, wait_until):
    """Whoever follows a job learns that its cluster is gone, and what to do."""
    add_node("places", places=2)
    with jobs.submit("headless", *WORKERS, *SERVICES, iterations=100_000, pace=0.02) as command:
        running(jobs, "headless", wait_until)
        head.kill()
        assert command.end() == 1
        assert "is lost, and with it the cluster itself; on another one, --resume goes on" in command.text


def samples(iterations):
    """The samples of so many whole batches."""
    return sum(SPEC.batch(iteration)[2] for iteration in range(iterations))
