"""The actor that owns a process, without a cluster: only its node's name is made up."""

import shutil
from types import SimpleNamespace

import pytest

from scheduler.ray.process_actor import ProcessActor, Task


@pytest.fixture
def actor(monkeypatch):
    """An actor whose process tells how it is called, and ends."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "node"))
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    made = ProcessActor(Task("w0", ("worker", "--help")))
    yield made
    made.close(5.0)
    made.remove()


def test_a_process_that_cannot_be_started_has_ended_and_can_be_started_again(actor, wait_until):
    """As where files or disk are short; here its log cannot be opened."""

    def ended(generation):
        seen = actor.describe("", 0).seen
        return seen if (seen.phase, seen.generation) == ("ended", generation) else None

    shutil.rmtree(actor._folder)
    actor.start(1, {})
    seen = wait_until(lambda: ended(1), "its end", 60.0)
    assert seen.failed
    assert "it cannot be started: [Errno 2]" in seen.reason
    actor._folder.mkdir()
    actor.start(2, {})
    assert wait_until(lambda: ended(2), "its end").finished
