"""The thread of heartbeats: nothing delays it, and it ends with its worker, whatever it is doing."""

import contextlib
import threading
from functools import partial

import numpy as np
import pytest

import idl
from batchsize_manager.client import ManagerClient
from idl.errors import ConnectionLostError
from rpc import client as client_module
from rpc.address import Address
from rpc.client import Client
from tests.scripts import train_least_squares as problem
from tests.services import in_threads, join_request, manager_service, serving
from tests.worker.least_squares import Worker, services, trained_alone
from worker.daemon_thread import in_daemon
from worker.heartbeat import Heartbeat
from worker.membership import Membership

_wire = idl.batchsize_manager


class Member:
    """A member that ignores all answers."""

    attempt = 0
    is_between = False


def test_leaving_does_not_wait_for_a_name_to_be_looked_up(monkeypatch):
    """Leaving does not wait for a name lookup, which cannot be interrupted; the thread ends after it."""
    looking, through = threading.Event(), threading.Event()

    def dial(address, seconds, contexts, begun):
        looking.set()
        assert any(through.wait(0.1) for _ in range(200))  # ten times as long as the thread is waited for
        raise OSError("no such name")

    monkeypatch.setattr(client_module, "dial", dial)
    client = Client(idl.batchsize_manager.BatchSizeManager, Address("nowhere", 1), "manager")
    heartbeat = Heartbeat(client, idl.common.Identity("job", "w", "i"), 1.0, Member())
    assert looking.wait(240)
    heartbeat.stop(ConnectionLostError("this worker is leaving"))
    assert heartbeat._thread.is_alive()
    through.set()
    heartbeat._thread.join(240)
    assert not heartbeat._thread.is_alive()


def test_another_thread_fences_the_shards(wait_until):
    """The thread that hears of another attempt, as with a heartbeat, does not fence itself."""
    fencing = []
    client = Client(_wire.BatchSizeManager, Address("nowhere", 1), "manager")
    identity = idl.common.Identity("job", "w", "w-1")
    member = Membership(
        client,
        identity,
        240,
        lambda lost: None,
        lambda error: None,
        lambda attempt: fencing.append((attempt, threading.current_thread())),
    )
    member.must_recover(1)
    wait_until(lambda: fencing, "the fence")
    ((attempt, thread),) = fencing
    assert attempt == 1
    assert thread is not threading.current_thread()


def test_a_heartbeat_under_way_tells_of_another_attempt(wait_until):
    """The manager holds an answer back that says nothing new, until there is news or the time is over."""
    service = manager_service(2)
    identities = [idl.common.Identity("job", name, f"{name}-1") for name in "ab"]
    told = []

    def beat(client, **held):
        request = _wire.HeartbeatRequest(identities[0], 0, **held)
        told.append(client.call("heartbeat", request).recover)

    with serving(service) as manager, contextlib.ExitStack() as stack:
        a, b, beats = (
            stack.enter_context(contextlib.closing(Client(_wire.BatchSizeManager, manager, "manager")))
            for _ in range(3)
        )
        requests = [join_request(identity) for identity in identities]
        in_threads(*(partial(c.call, "join", request) for c, request in zip((a, b), requests, strict=True)))
        (managed,) = service.jobs
        beat(beats, hold=0.01)
        assert told == [None]
        for attempt in (1, 2):
            known = None if attempt == 1 else attempt - 1
            beating = in_daemon(partial(beat, beats, hold=240.0, known=known))
            wait_until(lambda: managed.held, "the heartbeat")
            b.call("recover", _wire.RecoverRequest(identities[1], attempt - 1))
            wait_until(lambda attempt=attempt: len(told) > attempt, "its answer", 60)
            assert told[-1] == attempt
            assert not managed.held
            beating.result(60)
        in_daemon(partial(beat, beats, hold=240.0, known=2))
        wait_until(lambda: managed.held, "the heartbeat")
        assert len(told) == 3
        beats.abandon(ConnectionLostError("its worker dies"))
        wait_until(lambda: not managed.held, "the connection's end")


class Evaluating(Worker):
    """A worker whose script does something else between two batches until it is told to go on."""

    def __init__(self, *arguments, **options):
        self.may_go_on = threading.Event()
        super().__init__(*arguments, **options)

    def _train(self):
        for part in problem.go_through(self.session, self._iterations, self._at):
            self.done.append(part.assignment)
            if part.assignment.iteration == 10:
                assert self.may_go_on.wait(240)


@pytest.mark.simulated
def test_the_others_wait_for_a_script_that_does_something_else(wait_until):
    """Workers wait for longer than their time-outs, with plans ahead too, and the job goes on afterwards."""
    seconds = 12.0  # longer than a busy machine holds anybody up, as when a shard imports what it needs
    with contextlib.ExitStack() as stack:
        jobs = []
        for lookahead in (0, 2):
            manager, shards = stack.enter_context(
                services(2, heartbeat=0.1, report_timeout=seconds, lookahead=lookahead)
            )
            make = partial(Worker, barrier_timeout=seconds), Evaluating
            jobs.append((manager, [one(manager, shards, f"w{i}", 30) for i, one in enumerate(make)]))
        for manager, (_, evaluating) in jobs:
            client = stack.enter_context(ManagerClient(manager))

            wait_until(lambda evaluating=evaluating: evaluating.done, "the job to have begun")

            def state(client=client):
                return {member.worker: member.state for member in client.status("default").members}

            wait_until(lambda state=state: state().get("w1") == "between batches", "the others to wait")
            waited = client.status("default").summary.age
            wait_until(
                lambda client=client, waited=waited: (
                    client.status("default").summary.age > waited + 1.25 * seconds
                ),
                "time-outs to pass",
            )
            evaluating.may_go_on.set()
        for _, workers in jobs:
            for worker in workers:
                worker.end()
                assert np.allclose(worker.session.exchange.parameters, trained_alone(30))
