"""A restarted manager goes on with the same jobs from the same state."""

import contextlib
import sqlite3
import threading
import uuid
from functools import partial

import pytest

import idl
from batchsize_manager.job.config import JobConfig
from batchsize_manager.learning.saved_models import unpack_models
from batchsize_manager.service import ManagerConfig, ManagerService
from batchsize_manager.storage.state_format import STATE_FILE
from batchsize_manager.storage.state_reader import open_state
from idl.errors import EvenpaceError, InvalidRequestError, NotMemberError
from idl.synchronisation import Synchronisation
from idl.translation import read_history
from predictors import DeviceKind
from rpc.client import Client
from tests.services import (
    in_threads,
    join_request,
    restartable_manager,
    serving,
)

pytestmark = pytest.mark.usefixtures("time_to_close")

_wire = idl.batchsize_manager


class Worker:
    """A worker that goes through a job's iterations, and knows how many it has done."""

    def __init__(self, address, name, version=0, job="job"):
        self.identity = idl.common.Identity(job, name, uuid.uuid4().hex)
        self.client = Client(_wire.BatchSizeManager, address, "manager", call_timeout=60, connect_timeout=60)
        self.version = version
        self.runs = set()

    def train(self, until):
        """Go through iterations up to `until`, and leave."""
        self.go_on(self.join().assignment, until)
        self.client.call("leave", _wire.LeaveRequest(self.identity))
        self.client.close()

    def go_on(self, part, until):
        """Go through iterations up to `until`; return the assignment of that."""
        while part.iteration < until:
            part = self.report(part).assignment
        return part

    def join(self):
        """Join; return the first assignment."""
        return self._note(self.client.call("join", join_request(self.identity, dataset_size=10**6)))

    def report(self, part):
        """Report an assignment; return the next."""
        self.version = part.iteration + 1
        place = {"attempt": part.attempt or 0, "start": part.start}
        request = _wire.ReportRequest(self.identity, part.iteration, 0.5, 0.0, 0.5, 0.5, **place)
        return self._note(self.client.call("report", request))

    def heartbeat(self):
        """Send a heartbeat; return the attempt to recover with, if any."""
        return self.client.call("heartbeat", _wire.HeartbeatRequest(self.identity, 0)).recover

    def rewind(self, attempt):
        """Go on in an attempt from where it was; return the next assignment."""
        return self._note(
            self.client.call("rewind", _wire.RewindRequest(self.identity, attempt, self.version))
        )

    def _note(self, reply):
        self.runs.add(reply.run)
        return reply


def in_background(function):
    """Run a function that may fail in a thread."""

    def run():
        with contextlib.suppress(EvenpaceError):
            function()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def service(folder, policy="proportional", **job):
    """A manager in this process, with a state."""
    return ManagerService(
        ManagerConfig(policy, job=JobConfig(**{"reconnect_grace": 30.0} | job), state=folder)
    )


def history(client, job="job", first=0, limit=1000):
    """Return the manager's history of a job."""
    return client.call("history", _wire.HistoryRequest(job, first, limit))


def standing(client, job="job"):
    """How the job stands."""
    return client.call("status", _wire.StatusRequest(job, -1))


def members(client, job="job"):
    """The members' names."""
    return [member.worker for member in standing(client, job).members]


def iterations(client, **which):
    """Return the numbers of the complete iterations."""
    return [record.iteration for record in history(client, **which).iterations]


@pytest.fixture
def client():
    """A function that connects to a manager, to ask for the history."""
    with contextlib.ExitStack() as stack:

        def connect(address):
            made = Client(_wire.BatchSizeManager, address, "manager")
            stack.callback(made.close)
            return made

        yield connect


def test_a_manager_that_is_stopped_forgets_nothing(tmp_path, client):
    """After SIGTERM each iteration is in the history, and the job goes on with the next."""
    with restartable_manager(tmp_path) as manager:
        worker = Worker(manager.address, "w")
        part = worker.go_on(worker.join().assignment, 50)
        assert manager.stop() == 0
        manager.start()
        asking = client(manager.address)
        assert iterations(asking) == list(range(50))
        reply = worker.report(part)
        assert (reply.recover, reply.assignment) == (1, None)
        part = worker.rewind(1).assignment
        assert (part.iteration, part.attempt) == (51, 1)
        worker.report(part)
        assert iterations(asking) == [*range(50), 51]


# -- started again, in this process


@pytest.fixture
def stopped(tmp_path):
    """A worker whose manager has stopped after three iterations."""
    with serving(service(tmp_path)) as address:
        worker = Worker(address, "w")
        worker.go_on(worker.join().assignment, 3)
        worker.client.close()
    return worker


def connected(worker, address):
    """The same incarnation of the worker, through a new connection."""
    worker.client = Client(_wire.BatchSizeManager, address, "manager")
    return worker


def test_a_fit_may_be_due_at_the_start(tmp_path, stopped):
    """The policy has seen the last iterations again, and can learn from them before the next is complete."""
    manager = service(tmp_path)
    try:
        (managed,) = manager.jobs
        assert managed.job.take_effects().fit
    finally:
        manager.stop()


def _orphaned(tmp_path, client, wait_until):
    """Return the only worker of a job, which died after three iterations, its manager stopped, too."""
    with serving(service(tmp_path, "learned", reconnect_grace=0.0)) as address:
        worker = Worker(address, "w")
        worker.go_on(worker.join().assignment, 3)
        worker.client.close()
        wait_until(lambda: members(client(address)) == [], "the worker's death")
    return worker


def test_a_job_whose_workers_have_all_died_waits_for_others(tmp_path, client, wait_until):
    """A worker that joins it later, also after a restart of the manager, goes on from its last iteration.

    A worker that only seemed to have died may join, too.
    """
    dead = _orphaned(tmp_path, client, wait_until)
    with serving(service(tmp_path)) as address:
        worker = Worker(address, "new", dead.version)
        reply = worker.rewind(worker.join().recover)
        assert (reply.assignment.iteration, worker.runs) == (3, dead.runs)
        assert iterations(client(address)) == [0, 1, 2]
        connected(dead, address).heartbeat()
        assert members(client(address)) == ["new", "w"]
        for one in (worker, dead):
            one.client.close()


def test_what_a_policy_has_learned_is_remembered(tmp_path, client, wait_until):
    """A policy's models are in the state, for the restored job and for reports."""
    _orphaned(tmp_path, client, wait_until)
    with open_state(tmp_path) as reader:
        (run,) = reader.runs()
    assert [list(workers) for workers in unpack_models(run.learned).values()] == [["w", DeviceKind("")]]


def test_jobs_that_have_ended_stay_readable(tmp_path, client):
    """Ended jobs are found by name after a restart of the manager, and are not restored."""
    with serving(service(tmp_path)) as address:
        Worker(address, "w").train(5)
    with serving(service(tmp_path)) as address:
        told = history(client(address), first=2, limit=2)
        assert [record.iteration for record in told.iterations] == [2, 3]
        assert {name: part.batch_size for name, part in read_history(told)[1][0].parts.items()} == {"w": 10}
        with pytest.raises(InvalidRequestError, match="there is no job 'other'"):
            history(client(address), job="other")
        with open_state(tmp_path) as reader:
            (ended,) = reader.runs()
            assert (ended.run, ended.policy, ended.state.members) == (told.run, "proportional", ())
            assert "w left" in [saved.event for saved in reader.last_events(ended.run, 10)]
        again = Worker(address, "w")
        again.train(2)
        assert history(client(address)).run == next(iter(again.runs)) != told.run


def test_a_member_cannot_go_back_before_its_job_has_begun(tmp_path, client, wait_until):
    """`recover` and `rewind` are refused then, and the state of other jobs is written all the same."""
    with serving(service(tmp_path, workers=2)) as address:
        waiting, asking = Worker(address, "a", job="early"), client(address)
        thread = in_background(waiting.join)
        wait_until(lambda: _members(asking, "early") == ["a"], "the first worker's call")
        for method, request in (
            ("recover", _wire.RecoverRequest(waiting.identity, 0)),
            ("rewind", _wire.RewindRequest(waiting.identity, 1, 0)),
            ("rewind", _wire.RewindRequest(waiting.identity, 0, 0)),
        ):
            with pytest.raises(InvalidRequestError, match="has not begun, with 1 of 2 workers"):
                asking.call(method, request)
        others = [Worker(address, name) for name in "bc"]
        in_threads(*(partial(other.train, 3) for other in others))
        waiting.client.abandon(NotMemberError("over"))
        thread.join(30)
    with open_state(tmp_path) as reader:
        (run,) = reader.runs()
        assert (run.job, len(reader.records(run.run, 0, 10))) == ("job", 3)


def _members(client, job="job"):
    with contextlib.suppress(InvalidRequestError):
        return members(client, job)


def test_the_history_has_no_gap_while_the_state_is_behind(tmp_path, client, monkeypatch, wait_until):
    """Iterations that are in memory no more are read from it; those not yet written are returned later."""
    monkeypatch.setattr("batchsize_manager.job.history._RECORDS", 10)
    with serving(service(tmp_path)) as address:
        worker, asking = Worker(address, "w"), client(address)
        part = worker.go_on(worker.join().assignment, 20)
        wait_until(lambda: iterations(asking) == list(range(20)), "what is written by another thread")
        with contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE, timeout=120)) as other:
            other.execute("BEGIN IMMEDIATE")
            worker.go_on(part, 60)
            known = iterations(asking)
            assert known == list(range(len(known))), "a gap"
            other.rollback()
        wait_until(lambda: iterations(asking) == list(range(60)), "the rest")
        assert iterations(asking, first=7, limit=20) == list(range(7, 27))
        assert iterations(asking, first=60) == []
        worker.client.close()
    with serving(service(tmp_path)) as address:
        assert iterations(client(address)) == list(range(60))


def test_other_modes_than_bsp_are_not_brought_back(tmp_path):
    """Calls about such a job get an error with advice; the job's name is free."""
    config = {"synchronisation": Synchronisation("asp")}
    with serving(service(tmp_path, **config)) as address:
        worker = Worker(address, "w")
        part = worker.report(worker.join().assignment).assignment
        worker.client.close()
    with serving(service(tmp_path, **config)) as address:
        connected(worker, address)
        for ask in (lambda: worker.report(part), worker.heartbeat):
            with pytest.raises(NotMemberError, match="jobs in mode asp are not brought back: start the job"):
                ask()
        worker.identity.incarnation = "new"
        assert worker.join().assignment.iteration == 0
        worker.client.close()


def test_a_state_that_cannot_be_written_is_an_event(tmp_path, client, wait_until, monkeypatch):
    """Training goes on, a newcomer is not held back, and the end of the failure is an event, too."""
    monkeypatch.setattr("batchsize_manager.storage.state_file.BUSY_SECONDS", 0.02)
    monkeypatch.setattr("batchsize_manager.storage.state_writer._RETRY_SECONDS", 0.02)
    with serving(service(tmp_path)) as address:
        worker, newcomer, asking = Worker(address, "w"), Worker(address, "new"), client(address)
        part = worker.join().assignment

        def told(text):
            return [event for event in standing(asking).events if text in event.text]

        with contextlib.closing(
            sqlite3.connect(tmp_path / STATE_FILE, isolation_level=None, timeout=120)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            part = worker.go_on(part, 20)
            wait_until(lambda: told("cannot be written"), "an event")
            joining = in_background(newcomer.join)
            wait_until(lambda: members(asking) == ["w", "new"], "a newcomer")
            worker.report(part)
            joining.join(30)
            assert newcomer.runs
            other.execute("ROLLBACK")
        wait_until(lambda: told("is written to"), "an event")
        assert len(told("cannot be written")) == 1
        for one in (worker, newcomer):
            one.client.close()
    with open_state(tmp_path) as reader:
        (run,) = reader.runs()
        assert [record.iteration for record in reader.records(run.run, 0, 99)] == list(range(21))
