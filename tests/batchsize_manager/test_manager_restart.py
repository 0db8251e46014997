"""A restarted manager goes on with the same jobs from the same state."""

import contextlib
import math
import random
import sqlite3
import threading
import uuid
from functools import partial
from itertools import pairwise

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


class Tape:
    """A parameter server without arrays: it records which worker brought which samples of the next step.

    It checks that each sample of each batch is brought once in the attempt of the step.
    """

    def __init__(self) -> None:
        self.attempt = 0
        self.version = 0
        self.bound = math.inf  # the version beyond which nobody gets, until it is lifted
        self._slices: dict[int, int] = {}  # start to count, of the next step
        self._change = threading.Condition()

    def push(self, part) -> bool:
        """Bring a slice; return False if a later attempt has begun."""
        with self._change:
            assert self._change.wait_for(lambda: self.version < self.bound, 60)
            if (part.attempt or 0) != self.attempt:
                return False
            if part.iteration < self.version:
                return True
            assert part.iteration == self.version, "a step was left out"
            known = self._slices.setdefault(part.start, part.count)
            assert known == part.count, "slices overlap"
            covered = part.batch_start
            for start, count in sorted(self._slices.items()):
                assert start >= covered or not count, "slices overlap"
                if start != covered:
                    break
                covered += count
            if covered == part.batch_start + part.total:
                self.version += 1
                self._slices.clear()
                self._change.notify_all()
            return True

    def fence(self, attempt: int) -> int:
        """Begin an attempt; return the version that it can go on from."""
        with self._change:
            if attempt > self.attempt:
                self.attempt = attempt
                self._slices.clear()
            return self.version

    def wait_for(self, version: int) -> None:
        """Wait until the version is reached."""
        with self._change:
            assert self._change.wait_for(lambda: self.version >= version, 60)

    def hold(self, bound: float) -> None:
        """Let nobody get beyond this version."""
        with self._change:
            self.bound = bound
            self._change.notify_all()


class Worker:
    """A worker with a speed of its own, which goes through a job's iterations whatever the manager does.

    Args:
        speed: Samples per second, by which it reports times.
    """

    def __init__(self, address, name, tape, speed=100.0, job="job"):
        self.identity = idl.common.Identity(job, name, uuid.uuid4().hex)
        self.client = Client(_wire.BatchSizeManager, address, "manager", call_timeout=60, connect_timeout=60)
        self.tape = tape
        self.speed = speed
        self.runs = set()
        self.first_parts = []  # after the join and after each recovery

    def train(self, until):
        """Go through iterations up to `until`, and leave."""
        reply = self.join()
        while True:
            while reply.recover is not None:
                reply = self.rewind(reply.recover)
            part = reply.assignment
            if part.iteration >= until:
                break
            reply = self.report(part) if self.tape.push(part) else self.recover(part.attempt or 0)
        self.client.call("leave", _wire.LeaveRequest(self.identity))
        self.client.close()

    def join(self, **changes):
        """Join; return the first assignment."""
        request = join_request(self.identity, **{"total_batch_size": 64, "dataset_size": 10**6} | changes)
        return self._note(self.client.call("join", request))

    def report(self, part, **changes):
        """Report an assignment; return the next."""
        seconds = max(part.count / self.speed, 1e-6)
        place = {"attempt": part.attempt or 0, "start": part.start} | changes
        request = _wire.ReportRequest(self.identity, part.iteration, seconds, 0.0, 0.5, 0.5, **place)
        reply = self.client.call("report", request)
        self.runs.add(reply.run)
        return reply

    def heartbeat(self, attempt=0):
        """Send a heartbeat; return the attempt to recover with, if any."""
        return self.client.call("heartbeat", _wire.HeartbeatRequest(self.identity, attempt)).recover

    def recover(self, attempt):
        """Begin another attempt, or take part in one."""
        return self.rewind(self.client.call("recover", _wire.RecoverRequest(self.identity, attempt)).attempt)

    def rewind(self, attempt):
        """Fence the tape, and go on from its version; return the next assignment."""
        version = self.tape.fence(attempt)
        return self._note(self.client.call("rewind", _wire.RewindRequest(self.identity, attempt, version)))

    def _note(self, reply):
        self.runs.add(reply.run)
        if reply.assignment is not None:
            self.first_parts.append(reply.assignment)
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


@contextlib.contextmanager
def clients():
    """A function that connects to a manager, to ask for the history."""
    with contextlib.ExitStack() as stack:

        def connect(address):
            made = Client(_wire.BatchSizeManager, address, "manager")
            stack.callback(made.close)
            return made

        yield connect


@pytest.fixture
def client():
    """Such a function, for real connections."""
    with clients() as connect:
        yield connect


# -- killed


@pytest.mark.simulated
def test_a_killed_manager_goes_on_where_it_was(tmp_path, wait_until):
    """No step is left out or repeated whenever the manager is killed, and batch sizes follow its models.

    The history has each iteration once, but for the last before a kill.
    """
    tape, until = Tape(), 300
    # Far enough from each other for the workers to have gone on with one manager before the next is killed.
    draw = random.SystemRandom()
    kills = [at + draw.randrange(50) for at in (40, 110, 180)]
    bounds = [version + draw.randrange(1, 4) for version in kills]  # lest they are past it by then
    tape.hold(bounds[0])

    def kept():
        """Return the last iteration in the state; later ones are lost with a kill."""
        with open_state(tmp_path) as reader:
            return max(
                (r.iteration for run in reader.runs() for r in reader.last_records(run.run, 1)), default=-1
            )

    with restartable_manager(tmp_path, "--workers", "2") as manager, clients() as client:
        fast, slow = (
            Worker(manager.address, "fast", tape, 300.0),
            Worker(manager.address, "slow", tape, 100.0),
        )

        def kill():
            for version, following in zip(kills, [*bounds[1:], math.inf], strict=True):
                tape.wait_for(version - 12)
                wait_until(lambda least=version - 30: kept() >= least, "what had been learned")
                tape.wait_for(version)
                manager.kill()
                tape.hold(following)
                manager.start()

        in_threads(lambda: fast.train(until), lambda: slow.train(until), kill)
        asking = client(manager.address)
        done = wait_until(lambda: not members(asking) and iterations(asking), "the job's end")

    assert tape.version == until
    assert tape.attempt >= len(kills)
    assert len(fast.runs | slow.runs) == 1
    assert done == sorted(set(done))
    assert done[-1] == until - 1
    # Steps may have been taken of which not all reports had come, or been kept: the last before a kill.
    gaps = sum(following > last + 1 for last, following in pairwise([-1, *done]))
    assert gaps <= 2 * len(kills), set(range(until)) - set(done)
    assert len(fast.first_parts) == len(slow.first_parts) >= 1 + len(kills)
    assert [part.count for part in fast.first_parts[:1]] == [32]
    for part, other in zip(fast.first_parts[1:], slow.first_parts[1:], strict=True):
        assert (part.iteration, part.count + other.count) == (other.iteration, 64)
        assert 44 <= part.count <= 52, "three quarters, as had been learned"


def test_a_manager_that_is_stopped_forgets_nothing(tmp_path, client):
    """After SIGTERM each iteration is in the history, and the job goes on with the next."""
    tape = Tape()
    with restartable_manager(tmp_path) as manager:
        worker = Worker(manager.address, "w", tape)
        reply = worker.join()
        for _ in range(50):
            tape.push(reply.assignment)
            reply = worker.report(reply.assignment)
        assert manager.stop() == 0
        manager.start()
        asking = client(manager.address)
        assert iterations(asking) == list(range(50))
        tape.push(reply.assignment)
        reply = worker.report(reply.assignment)
        assert (reply.recover, reply.assignment) == (1, None)
        reply = worker.rewind(1)
        assert (reply.assignment.iteration, reply.assignment.attempt) == (51, 1)
        assert iterations(asking) == list(range(50))
        tape.push(reply.assignment)
        worker.report(reply.assignment)
        assert iterations(asking) == [*range(50), 51]


# -- started again, in this process


@pytest.fixture
def stopped(tmp_path):
    """A worker whose manager has stopped after three iterations, with the fourth assigned."""
    tape = Tape()
    with serving(service(tmp_path)) as address:
        worker = Worker(address, "w", tape)
        reply = worker.join()
        for _ in range(3):
            tape.push(reply.assignment)
            reply = worker.report(reply.assignment)
        worker.client.close()
    return worker, reply.assignment


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


@pytest.mark.parametrize("way", ["report", "heartbeat", "join", "recover"])
def test_members_are_known_again_by_any_call(tmp_path, stopped, way):
    """Each call is answered with the new attempt; then the job goes on from the shards' version."""
    worker, part = stopped
    with serving(service(tmp_path)) as address:
        connected(worker, address)
        if way == "report":
            attempt = worker.report(part).recover
        elif way == "heartbeat":
            attempt = worker.heartbeat()
        elif way == "join":
            attempt = worker.join().recover
        else:
            request = _wire.RecoverRequest(worker.identity, 0)
            attempt = worker.client.call("recover", request).attempt
        assert attempt == 1
        reply = worker.rewind(attempt)
        assert (reply.assignment.iteration, reply.assignment.attempt, reply.run) == (3, 1, *worker.runs)
        assert worker.heartbeat(1) is None
        worker.tape.push(reply.assignment)
        assert worker.report(reply.assignment).assignment.iteration == 4
        worker.client.close()


def test_strangers_are_not_taken_for_members(tmp_path, stopped):
    """The report of another incarnation is refused."""
    worker, part = stopped
    with serving(service(tmp_path)) as address:
        connected(worker, address)
        worker.identity.incarnation = "another"
        with pytest.raises(NotMemberError, match="is not a member"):
            worker.report(part)
        worker.client.close()


def test_an_attempt_after_each_start(tmp_path, stopped):
    """No attempt is begun twice over restarts of the manager, even without a worker in between."""
    worker, _ = stopped
    for _ in range(2):
        with serving(service(tmp_path)):
            pass
    with serving(service(tmp_path)) as address:
        assert connected(worker, address).heartbeat() == 3
        worker.client.close()


def _orphaned(tmp_path, client, wait_until):
    """Return the only worker of a job, which died after three iterations, its manager stopped, too."""
    with serving(service(tmp_path, "learned", reconnect_grace=0.0)) as address:
        worker = Worker(address, "w", Tape())
        reply = worker.join()
        for _ in range(3):
            worker.tape.push(reply.assignment)
            reply = worker.report(reply.assignment)
        worker.client.close()
        wait_until(lambda: members(client(address)) == [], "the worker's death")
    return worker


def test_a_job_whose_workers_have_all_died_waits_for_others(tmp_path, client, wait_until):
    """A worker that joins it later, also after a restart of the manager, goes on from its last iteration.

    A worker that only seemed to have died may join, too.
    """
    dead = _orphaned(tmp_path, client, wait_until)
    with serving(service(tmp_path)) as address:
        worker = Worker(address, "new", dead.tape)
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
        Worker(address, "w", Tape()).train(5)
    with serving(service(tmp_path)) as address:
        told = history(client(address), first=2, limit=2)
        assert [record.iteration for record in told.iterations] == [2, 3]
        assert {name: part.batch_size for name, part in read_history(told)[1][0].parts.items()} == {"w": 64}
        with pytest.raises(InvalidRequestError, match="there is no job 'other'"):
            history(client(address), job="other")
        with open_state(tmp_path) as reader:
            (ended,) = reader.runs()
            assert (ended.run, ended.policy, ended.state.members) == (told.run, "proportional", ())
            assert "w left" in [saved.event for saved in reader.last_events(ended.run, 10)]
        again = Worker(address, "w", Tape())
        again.train(2)
        assert history(client(address)).run == next(iter(again.runs)) != told.run


def test_a_member_cannot_go_back_before_its_job_has_begun(tmp_path, client, wait_until):
    """`recover` and `rewind` are refused then, and the state of other jobs is written all the same."""
    with serving(service(tmp_path, workers=2)) as address:
        waiting, asking = Worker(address, "a", Tape(), job="early"), client(address)
        thread = in_background(waiting.join)
        wait_until(lambda: _members(asking, "early") == ["a"], "the first worker's call")
        for method, request in (
            ("recover", _wire.RecoverRequest(waiting.identity, 0)),
            ("rewind", _wire.RewindRequest(waiting.identity, 1, 0)),
            ("rewind", _wire.RewindRequest(waiting.identity, 0, 0)),
        ):
            with pytest.raises(InvalidRequestError, match="has not begun, with 1 of 2 workers"):
                asking.call(method, request)
        tape = Tape()
        others = [Worker(address, name, tape) for name in "bc"]
        in_threads(*(partial(other.train, 3) for other in others))
        waiting.client.abandon(NotMemberError("over"))
        thread.join(30)
    with open_state(tmp_path) as reader:
        (run,) = reader.runs()
        assert (run.job, len(reader.records(run.run, 0, 10))) == ("job", 3)


def test_a_later_attempt_may_be_known_before_the_job_has_begun(tmp_path, client, wait_until):
    """Members of a job that gathers again may go back then, and the state is written all the same."""
    manager = service(tmp_path, workers=2)
    with serving(manager) as address:
        waiting, asking = Worker(address, "a", Tape(), job="early"), client(address)
        thread = in_background(waiting.join)
        wait_until(lambda: _members(asking, "early") == ["a"], "the first worker's call")
        beat = _wire.HeartbeatRequest(waiting.identity, 3)
        assert asking.call("heartbeat", beat).recover == 4
        thread.join(30)
        again = in_background(lambda: asking.call("rewind", _wire.RewindRequest(waiting.identity, 4, 0)))
        (managed,) = manager.jobs
        wait_until(lambda: not managed.job.attempts.recovering, "the call of who goes back")
        other = Worker(address, "b", Tape(), job="early")
        reply = other.join()
        again.join(30)
        assert reply.assignment.attempt == 4
        other.client.close()
        waiting.client.close()
    with open_state(tmp_path) as reader:
        (run,) = reader.runs()
        assert (run.job, run.state.attempt) == ("early", 4)


def _members(client, job="job"):
    with contextlib.suppress(InvalidRequestError):
        return members(client, job)


def test_the_history_reaches_beyond_what_is_in_memory(tmp_path, client, monkeypatch, wait_until):
    """Iterations no longer in memory are read from the state, before and after a restart."""
    monkeypatch.setattr("batchsize_manager.job.history._RECORDS", 10)
    tape = Tape()
    with serving(service(tmp_path)) as address:
        worker = Worker(address, "w", tape)
        reply = worker.join()
        for _ in range(40):
            tape.push(reply.assignment)
            reply = worker.report(reply.assignment)
        asking = client(address)
        assert iterations(asking, first=35) == list(range(35, 40))
        wanted = list(range(40))
        wait_until(lambda: iterations(asking) == wanted, "what is written by another thread")
        assert iterations(asking, first=7, limit=20) == wanted[7:27]
        assert iterations(asking, first=40) == []
        worker.client.close()
    with serving(service(tmp_path)) as address:
        assert iterations(client(address)) == wanted


def test_the_history_has_no_gap_while_the_state_is_behind(tmp_path, client, monkeypatch, wait_until):
    """Iterations that are not yet written are not skipped: they are returned later."""
    monkeypatch.setattr("batchsize_manager.job.history._RECORDS", 10)
    tape = Tape()
    with serving(service(tmp_path)) as address:
        worker, asking = Worker(address, "w", tape), client(address)
        part = worker.join().assignment

        def go_on(until):
            nonlocal part
            while part.iteration < until:
                tape.push(part)
                part = worker.report(part).assignment

        go_on(20)
        wait_until(lambda: iterations(asking) == list(range(20)), "what is written by another thread")
        with contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE, timeout=120)) as other:
            other.execute("BEGIN IMMEDIATE")
            go_on(60)
            known = iterations(asking)
            assert known == list(range(len(known))), "a gap"
            other.rollback()
        wait_until(lambda: iterations(asking) == list(range(60)), "the rest")
        worker.client.close()


@pytest.mark.parametrize("mode", ["asp", "backup"])
def test_other_modes_than_bsp_are_not_brought_back(tmp_path, mode):
    """Calls about such a job get an error with advice; the job's name is free."""
    config = {"synchronisation": Synchronisation(mode, None, 1 if mode == "backup" else None)}
    with serving(service(tmp_path, **config)) as address:
        worker = Worker(address, "w", Tape())
        reply = worker.report(worker.join().assignment)
        worker.client.close()
    with serving(service(tmp_path, **config)) as address:
        connected(worker, address)
        for ask in (lambda: worker.report(reply.assignment), worker.heartbeat):
            with pytest.raises(
                NotMemberError, match=rf"jobs in mode {mode} are not brought back: start the job"
            ):
                ask()
        worker.identity.incarnation = "new"
        assert worker.join().assignment.iteration == 0
        worker.client.close()


def test_a_state_that_cannot_be_written_is_an_event(tmp_path, client, wait_until, monkeypatch):
    """Training goes on; the history reports the failure of writes, and its end."""
    monkeypatch.setattr("batchsize_manager.storage.state_file.BUSY_SECONDS", 0.02)
    monkeypatch.setattr("batchsize_manager.storage.state_writer._RETRY_SECONDS", 0.02)
    tape = Tape()
    with serving(service(tmp_path)) as address:
        worker, asking = Worker(address, "w", tape), client(address)
        reply = worker.join()
        with contextlib.closing(
            sqlite3.connect(tmp_path / STATE_FILE, isolation_level=None, timeout=120)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            for _ in range(20):
                tape.push(reply.assignment)
                reply = worker.report(reply.assignment)

            def told(text):
                return [event for event in standing(asking).events if text in event.text]

            wait_until(lambda: told("cannot be written"), "an event")
            newcomer = Worker(address, "new", tape)
            joining = in_background(newcomer.join)
            wait_until(lambda: members(asking) == ["w", "new"], "a newcomer")
            tape.push(reply.assignment)
            thread = in_background(lambda: worker.report(reply.assignment))
            joining.join(30)  # it is not held back
            assert newcomer.first_parts
            other.execute("ROLLBACK")
        wait_until(lambda: told("is written to"), "an event")
        assert len(told("cannot be written")) == 1
        for one in (worker, newcomer):
            one.client.abandon(NotMemberError("over"))
        thread.join(30)
    with open_state(tmp_path) as reader:
        assert [record.iteration for record in reader.records(reply.run, 0, 99)] == list(range(21))
