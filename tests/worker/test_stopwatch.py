"""The stopwatch, and a session's use of it, on a clock that the tests set."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import idl
from idl.layout import Group, Layout
from idl.plan import Assignment
from idl.synchronisation import Synchronisation
from lab.observer import Observer
from ps import service as ps_service
from rpc.client import Client
from tests.scripts.train_least_squares import go_through
from tests.services import ShardWorker, serving, shard_service
from tests.worker.least_squares import services
from worker import stopwatch as timing
from worker.session import Session, SessionConfig
from worker.shard_clients import ShardClients
from worker.stopwatch import Stopwatch


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self):
        self.now = 1000.0

    def perf_counter(self):
        """Return the made-up time."""
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Replace the time module by the made-up clock."""
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ([1, "start", 2, "stop", 4, "start", 8, "stop"], [10]),
        (["start", 3, "take", 5], [3, 0]),
        (["start", 1, "start", 1, "stop", 1, "stop"], [2]),
        (["start", 5, ("exclude", 2), 1, "stop", ("exclude", 1)], [3]),
        ([("exclude", 2), "take", "start", 1], [0, 1]),
    ],
    ids=["what runs", "taken", "twice", "less what is excluded", "not below zero"],
)
def test_the_stopwatch_sums_up_what_runs(clock, steps, seconds):
    """Each `take` gives the time that ran since the one before, less what was excluded."""
    watch, taken = Stopwatch(), []
    for step in [*steps, "take"]:
        match step:
            case int():
                clock.now += step
            case "take":
                taken.append(watch.take())
            case (name, excluded):
                getattr(watch, name)(excluded)
            case name:
                getattr(watch, name)()
    assert taken == seconds


# -- the batch processing time


def reported(wait_until, lookahead=0, at=lambda session: None):
    """Return what the one worker of a job has reported of four iterations, in which it does something."""
    with (
        services(1, lookahead=lookahead) as (manager, shards),
        contextlib.closing(Session(SessionConfig(manager, tuple(shards), worker="w"))) as session,
        contextlib.closing(Observer(manager, ())) as seen,
    ):
        assert [part.assignment.iteration for part in go_through(session, 4, at)] == [0, 1, 2, 3]
        wait_until(lambda: seen.poll() and len(seen.iterations) == 4, "the last report")
    return [next(iter(record.parts.values())) for record in seen.iterations]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_the_wait_for_a_pull_is_no_processing_time(clock, monkeypatch, wait_until, lookahead):
    """The shards' wait is reported as waiting; the rest of a pull counts for the next iteration."""
    pull = ShardClients.pull

    def held_back(*of, **how):
        pull(*of, **how)
        clock.now += 3600 + 0.25
        return 3600.0

    monkeypatch.setattr(ShardClients, "pull", held_back)

    def compute(session):
        clock.now += 2

    parts = reported(wait_until, lookahead, compute)
    assert [part.batch_processing_time for part in parts] == [2.0, 2.25, 2.25, 2.25]
    assert all(part.waiting_time >= 3600 for part in parts)


def test_a_suspended_machine_has_not_waited_for_longer_than_its_own_clock_says(monkeypatch, wait_until):
    """Where the shard's clock goes on and the worker's stands still, its reports hold its own times."""
    elsewhere = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(ps_service, "time", elsewhere)  # an hour passes between a pull and its answer
    begun = time.monotonic()
    parts = reported(wait_until)
    took = time.monotonic() - begun
    assert all(part.batch_processing_time > 0 for part in parts)
    assert sum(part.batch_processing_time + part.waiting_time for part in parts) <= took


def test_a_pull_is_held_back_for_as_long_as_its_last_shard_says(wait_until):
    """The wait of a pull is that of the shard that held it back longest."""
    halves = [shard_service(), shard_service()]
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(serving(half)) for half in halves]
        workers = [stack.enter_context(contextlib.closing(ShardWorker(at, 10, "j/run"))) for at in addresses]
        clients = [Client(idl.parameter_server.ParameterServer, at, "shard") for at in addresses]
        shards = stack.enter_context(contextlib.closing(ShardClients(clients, 240.0)))
        shards.identify(workers[0].identity)
        layout, parameters = Layout("float32", "sgd", (Group(20, {"lr": 1.0}),)), np.zeros(20, np.float32)
        shards.open(layout, Synchronisation(), parameters, Assignment(0, 0, 0, 8, 8), None)
        pool = stack.enter_context(ThreadPoolExecutor(1))

        begun = time.monotonic()
        waited = pool.submit(shards.pull, 1, parameters)
        wait_until(lambda: all(half.jobs[0].waiting for half in halves), "both shards to have the question")
        had = time.monotonic()
        workers[0].push()
        wait_until(lambda: not halves[0].jobs[0].waiting, "the first shard's answer")
        longest = time.monotonic() - begun  # that the first can say
        wait_until(lambda: time.monotonic() - had > longest, "a longer time to pass")
        least = time.monotonic() - had
        workers[1].push()
        assert least <= waited.result(240) <= time.monotonic() - begun
