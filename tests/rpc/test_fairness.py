"""The fairness of a server: one peer's many calls do not keep other peers waiting."""

import threading
import time

import idl
from tests.services import MemberWorker, Raw, manager_service, serving
from tests.wire import answer, framed

_CALLS = 300
_SECONDS = 60.0


def test_others_have_their_turn_between_calls_sent_at_once():
    """Slow calls sent together are all answered, and another peer's call need not wait for them."""
    service = manager_service()
    handled, handled_before = [], []
    begun, asked = threading.Event(), threading.Event()
    history, report = service._handlers["history"], service._handlers["report"]

    def slow_history(call):
        begun.set()
        assert asked.wait(_SECONDS)  # both have sent all by now: who is next is the service's choice alone
        handled.append(call)
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        history(call)

    def noted_report(call):
        handled_before.append(len(handled))
        report(call)

    service._handlers |= {"history": slow_history, "report": noted_report}
    with serving(service) as address:
        worker = MemberWorker(address)
        question = framed("history", idl.batchsize_manager.HistoryRequest(worker.identity.job, 0, 1))
        with Raw(address) as raw:
            raw.send(_CALLS * question)
            assert begun.wait(_SECONDS)
            request = idl.batchsize_manager.ReportRequest(worker.identity, 0, 0.5, 0.0, 0.5, 0.5)
            deadline = time.monotonic() + _SECONDS
            worker.client.send("report", request, deadline=deadline)
            asked.set()
            for _ in range(_CALLS):
                assert answer(raw)[1].run == worker.run
            assert worker.client.receive(deadline=deadline).reported_iteration == 0
        worker.close()
    assert len(handled) == _CALLS
    assert handled_before[0] < _CALLS / 2
