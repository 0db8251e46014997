"""An observer's records, members and events, while a job goes on."""

import contextlib

from lab.observer import Observer
from tests.services import MemberWorker, manager_service, serving


def test_who_sees_that_all_have_left_has_the_last_record(monkeypatch):
    """The last iteration is complete, and its worker leaves, while the observer asks."""
    with serving(manager_service()) as manager:
        worker = MemberWorker(manager)
        with contextlib.closing(Observer(manager, (), worker.identity.job)) as observer:
            worker.iterate()
            assert observer.poll()
            assert (len(observer.iterations), len(observer.members)) == (1, 1)
            status = observer._manager.status

            def late(*arguments):
                worker.iterate()
                worker.close()
                return status(*arguments)

            monkeypatch.setattr(observer._manager, "status", late)
            assert observer.poll()
            assert (len(observer.iterations), observer.members) == (2, [])
