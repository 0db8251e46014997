"""A worker's membership with a real manager: lookahead, resumption, and release."""

import contextlib
import dataclasses
import logging
import sqlite3
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from functools import partial

import numpy as np
import pytest

import idl
from batchsize_manager.learning.saved_models import pack_models, unpack_models
from batchsize_manager.service import ManagerConfig, ManagerService
from batchsize_manager.storage.state_format import STATE_FILE
from batchsize_manager.storage.state_reader import open_state
from idl.bounds import Bounds
from idl.errors import DeadlineExceededError, InvalidRequestError, NotMemberError
from idl.plan import Assignment, JobSpec, Resume
from idl.records import Report
from rpc import client as client_module
from rpc.client import Client
from tests.services import join_request, manager_service, serving
from worker import membership as membership_module
from worker.membership import Membership

SPEC = JobSpec(dataset_size=1000, total_batch_size=12)


@contextlib.contextmanager
def member(address, name: str = "w") -> Iterator[Membership]:
    """Make a membership that leaves at the end."""
    client = Client(idl.batchsize_manager.BatchSizeManager, address, "manager", call_timeout=30, silence=60)
    identity = idl.common.Identity("j", name, uuid.uuid4().hex)
    membership = Membership(client, identity, 30.0, lambda lost: None, lambda error: None)
    try:
        yield membership
    finally:
        membership.leave()
        membership.close()


def together(*calls):
    """Return the results of calls that wait for each other; the first error is raised."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result(60) for future in [threads.submit(call) for call in calls]]


def joining(*members: Membership, resume=None, **options) -> None:
    """Let all members join one job."""
    together(*(lambda m=m: m.join(SPEC, Bounds(), resume, **options) for m in members))


def iterate(*members: Membership, maxima: dict[int, int] | None = None) -> list[Assignment | None]:
    """Let all members take and report an iteration; `maxima`: learned maximum batch sizes, by member."""
    parts = [m.next() for m in members]
    reports = [
        lambda m=m, part=part, i=i: m.report(
            Report(part.iteration, 0.0, maximum=(maxima or {}).get(i), attempt=0), lambda: 0.1
        )
        for i, (m, part) in enumerate(zip(members, parts, strict=True))
        if part is not None
    ]
    if reports:
        together(*reports)
    return parts


def send_report(*members: Membership) -> None:
    """Have members send reports of their next assignments, one after the other."""
    for m in members:
        m.send_report(Report(m.next().iteration, 0.0, attempt=0), lambda: 0.1)


@pytest.mark.parametrize("lookahead", [0, 2])
def test_reports_are_sent_before_their_answers_are_waited_for(lookahead, wait_until):
    """Iterations are complete before anybody has waited for the others."""
    manager = manager_service(workers=2, lookahead=lookahead)
    with serving(manager) as address, member(address, "a") as a, member(address, "b") as b:
        joining(a, b)
        for iteration in range(5):
            send_report(a, b)
            wait_until(lambda done=iteration: len(manager.jobs[0].job.history(0, 9)) > done, "the record")
            together(a.take_answer, b.take_answer)
        assert a.next().iteration == b.next().iteration == 5
        assert a.reconnects == b.reconnects == 0


def test_a_release_is_for_good():
    """Also where a manager that has forgotten it answers a report that was sent meanwhile."""
    manager = manager_service(workers=1, lookahead=2)
    with serving(manager) as address, member(address) as w:
        joining(w)
        part = w.next()
        answer = partial(
            idl.batchsize_manager.AssignmentReply, identity=w._identity, reported_iteration=part.iteration
        )
        w._note_reply(answer(released="drained by an operator"))
        w._note_reply(answer(report_on=True))
        assert w.released == "drained by an operator"


def test_who_cannot_go_on_has_no_other_attempt_begun():
    """The others would have to begin it, too; the error says why it cannot."""
    manager = manager_service(workers=1)
    with serving(manager) as address, member(address) as w:
        joining(w)
        w.fail(NotMemberError("w is taken out"))
        with pytest.raises(NotMemberError, match="w is taken out"):
            w.recover(0)
        assert manager.jobs[0].job.attempts.number == 0


def is_late(worker: Membership, other: Membership) -> None:
    """Have the other report so late that the worker is answered "not yet" before."""
    waiting = ThreadPoolExecutor(1).submit(worker.take_answer)
    assert not wait([waiting], 1.0).done
    send_report(other)
    waiting.result(60)


MEANWHILE = {
    "connection breaks": lambda worker, other: worker._client.interrupt(),
    "another call": lambda worker, other: worker.checkpoint(),
    "nothing": lambda worker, other: send_report(other),
    "the other is late": is_late,
}


@pytest.mark.simulated
@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_report_whose_answer_is_waited_for_later_counts_once(meanwhile, monkeypatch):
    """Whatever becomes of the connection, or is asked, before its answer is waited for."""
    monkeypatch.setattr(client_module, "_WAIT_SECONDS", 0.1)
    manager = manager_service(workers=2)
    with serving(manager) as address, member(address, "a") as a, member(address, "b") as b:
        joining(a, b)
        send_report(a)
        MEANWHILE[meanwhile](a, b)
        if b._sent is None:
            send_report(b)
        together(a.take_answer, b.take_answer)
        assert [part.iteration for part in iterate(a, b)] == [1, 1]
        (record,) = manager.jobs[0].job.history(0, 1)
        assert {name: part.batch_size for name, part in record.parts.items()} == {"a": 6, "b": 6}


def test_a_job_goes_on_from_where_it_was_saved():
    """Workers with a checkpoint get the iteration after it, and the manager its learned state."""
    learned = pack_models({"lstm": {"w": {"x": np.arange(3.0)}}})
    with serving(manager_service()) as address, member(address) as worker:
        joining(worker, resume=Resume(85), learned=learned)
        part = worker.next()
        assert (part.iteration, part.epoch, part.start) == (85, 1, 12)
        unpack_models(worker.checkpoint()[0])  # raises if it is none


def test_rubbish_in_a_checkpoint_is_refused():
    """A checkpoint without valid models is refused, and no job is made of it."""
    with serving(manager_service()) as address, member(address) as worker:
        with pytest.raises(InvalidRequestError, match="learned: "):
            joining(worker, resume=Resume(3), learned=b"rubbish")
        joining(worker)
        assert worker.next().iteration == 0


def test_workers_must_resume_from_the_same_iteration():
    """A job that gathers its workers refuses one with another checkpoint, and names both iterations."""
    with (
        serving(manager_service(workers=2)) as address,
        member(address, "a") as a,
        member(address, "b") as b,
        ThreadPoolExecutor(2) as threads,
    ):
        starts = {threads.submit(a.join, SPEC, Bounds(), Resume(24)): 24}
        starts[threads.submit(b.join, SPEC, Bounds(), Resume(12))] = 12
        refused = next(as_completed(starts, 60))  # whoever came first still waits
        with pytest.raises(
            InvalidRequestError, match=r"from iteration (12|24), but .* from (12|24): give all"
        ):
            refused.result()
        start = 36 - starts[refused]
        waiting, late = (a, b) if start == 24 else (b, a)
        joining(late, resume=Resume(start))
        assert waiting.next().iteration == late.next().iteration == start


@pytest.mark.simulated
def test_worker_that_waits_for_others_says_so(monkeypatch, caplog, wait_until):
    """While a job lacks workers, one that has joined logs what it waits for."""
    monkeypatch.setattr(client_module, "_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(membership_module, "_BEGIN_QUIET_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "worker.membership")
    other = dataclasses.replace(SPEC, dataset_size=999)

    def is_said(text):
        return lambda: text in caplog.text

    with serving(manager_service(workers=2)) as address, member(address, "a") as a, member(address, "b") as b:

        def second():
            wait_until(is_said("waiting for job j to begin, for 0 s so far: there is no"), "a line of log")
            wait_until(is_said("yet: 1 of 2 workers have joined (a)"), "what it waits for")
            with pytest.raises(InvalidRequestError):
                b.join(other, Bounds(), None)
            refused = "--workers`); b was refused: job 'j' runs with dataset_size 1000"
            wait_until(is_said(refused), "who was refused")
            b.join(SPEC, Bounds(), None)

        together(lambda: a.join(SPEC, Bounds(), None), second)
    assert caplog.text.count("1 of 2 workers have joined") == 2  # once for each thing that is new


@pytest.mark.simulated
def test_a_wait_that_is_over_says_what_for(monkeypatch):
    """The error of a call that waited for others has what the manager said last."""
    monkeypatch.setattr(client_module, "_WAIT_SECONDS", 0.1)
    said = r"did not answer join within its deadline: .*1 of 3 workers have joined \(a\): start the other 2"
    with serving(manager_service(workers=3)) as address, member(address, "a") as a:
        a._client._call_timeout = 1.0
        with pytest.raises(DeadlineExceededError, match=said):
            a.join(SPEC, Bounds(), None)


def test_an_end_that_the_manager_cannot_write_down(tmp_path, monkeypatch, wait_until, caplog):
    """Who leaves is told that its end may be forgotten, and who joins after that, that an old run goes on."""
    monkeypatch.setattr("batchsize_manager.storage.state_file.BUSY_SECONDS", 0.02)
    config = ManagerConfig("even", state=tmp_path)
    manager = ManagerService(config)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE, isolation_level=None)) as other,
        serving(manager) as address,
    ):
        with member(address) as worker:
            worker.join(SPEC, Bounds())
            iterate(worker)
            wait_until(lambda: not manager.state_writer.pending, "the first iteration in the state")
            other.execute("BEGIN IMMEDIATE")
            iterate(worker)
            wait_until(lambda: manager.state_writer.is_behind, "a failure to write")
        assert "cannot write down at present that this worker has left" in caplog.text
    caplog.clear()
    with serving(ManagerService(config)) as address, member(address, "new") as worker:
        worker.join(SPEC, Bounds())
        assert "job j goes on with a run that had begun before, at iteration 1 as far as" in caplog.text
        with member(address, "another") as late:
            late.join(SPEC, Bounds())  # it is told of no run, since it is not alone
    assert caplog.text.count("goes on with a run") == 1
    assert "cannot write down" not in caplog.text


def test_an_end_is_written_before_it_is_answered(tmp_path, monkeypatch, wait_until):
    """A manager that is killed once all workers have left begins a new run for the next ones."""
    monkeypatch.setattr("batchsize_manager.storage.state_file.BUSY_SECONDS", 240.0)
    monkeypatch.setattr("batchsize_manager.storage.state_writer._LONGEST_WAIT", 240.0)
    manager = ManagerService(ManagerConfig("even", state=tmp_path))
    identity = idl.common.Identity("j", "w", uuid.uuid4().hex)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE, isolation_level=None)) as other,
        serving(manager) as address,
        ThreadPoolExecutor(1) as thread,
        contextlib.closing(Client(idl.batchsize_manager.BatchSizeManager, address, "manager")) as client,
    ):
        client.call("join", join_request(identity))
        wait_until(lambda: not manager.state_writer.pending, "the job in the state")
        other.execute("BEGIN IMMEDIATE")
        left = thread.submit(client.call, "leave", idl.batchsize_manager.LeaveRequest(identity))
        wait_until(lambda: not manager.jobs, "the job's end")
        assert not wait([left], 1.0).done
        other.execute("ROLLBACK")
        assert left.result(60).unwritten is None
        with open_state(tmp_path) as reader:
            assert not reader.unfinished()
