"""A manager's answers about its jobs, over real connections."""

import uuid

import pytest

import idl
from batchsize_manager.client import ManagerClient
from batchsize_manager.service import ManagerConfig, ManagerService
from idl.errors import InvalidRequestError, UnauthorisedError
from rpc import tokens
from rpc.client import Client
from rpc.server import Security
from tests.services import MemberWorker, in_threads, join_request, manager_service, serving, with_token

_wire = idl.batchsize_manager


def test_a_job_is_reported_from_its_beginning_to_its_end():
    """Summaries, members, events and records follow a job; what has ended is listed after what runs."""
    with serving(manager_service()) as address, ManagerClient(address) as client:
        assert client.jobs().jobs == []
        worker = MemberWorker(address, "first")
        for _ in range(3):
            worker.iterate()
        summary = client.jobs("first").jobs[0]
        assert (summary.state, summary.members, summary.iteration, summary.batch_size) == (
            "running",
            1,
            3,
            10,
        )
        assert (summary.policy, summary.predictor, summary.mode) == ("proportional", "auto", "bsp")
        status = client.status("first")
        assert [(m.worker, m.state, m.iteration) for m in status.members] == [("good", "working", 3)]
        assert status.events[0].text == "good joined, for iteration 0 on"
        known = status.events[-1].number
        assert client.status("first", known).events == []
        run, iterations = client.history("first", 1)
        assert run == summary.run
        assert [one.iteration for one in iterations] == [1, 2]
        assert iterations[0].workers == ("good",)
        assert iterations[0].batch_sizes.tolist() == [10]
        assert iterations[0].speeds.tolist() == [20.0]
        assert client.history("first", 3)[1] == []
        worker.close()
        other = MemberWorker(address, "second")
        assert [(job.job, job.state) for job in client.jobs().jobs] == [
            ("second", "running"),
            ("first", "ended"),
        ]
        assert client.status("first", known).events[0].text == "good left"
        assert len(client.history("first", 0)[1]) == 3
        other.close()


def test_a_worker_that_waits_for_others_is_seen(wait_until):
    """A member whose report is not answered yet is waiting, the other one works."""
    with serving(manager_service(workers=2)) as address, ManagerClient(address) as client:
        identities = [idl.common.Identity("pair", name, uuid.uuid4().hex) for name in ("early", "late")]
        clients = [Client(_wire.BatchSizeManager, address, "manager", call_timeout=240) for _ in identities]
        in_threads(
            *(
                lambda c=c, i=i: c.call("join", join_request(i))
                for c, i in zip(clients, identities, strict=True)
            )
        )

        def report(number):
            clients[number].call("report", _wire.ReportRequest(identities[number], 0, 0.5, 0.0, 0.5, 0.5))

        def look_then_report():
            def states():
                return {m.worker: m.state for m in client.status("pair").members}

            wait_until(lambda: states()["early"] == "waiting", "the early one's waiting")
            assert states()["late"] == "working"
            report(1)

        in_threads(lambda: report(0), look_then_report)
        for one in clients:
            one.close()


@pytest.mark.ci
def test_long_answers_come_in_parts():
    """Records that are too many for one answer are all there, in order, over several."""
    with serving(ManagerService(ManagerConfig())) as address, ManagerClient(address) as client:
        worker = MemberWorker(address, "long")
        for _ in range(1500):
            worker.iterate()
        seen = []
        while iterations := client.history("long", len(seen))[1]:
            seen += [one.iteration for one in iterations]
        assert seen == list(range(1500))
        worker.close()


def test_a_token_of_all_jobs_opens_all_of_them(tmp_path):
    """A token of a single job shows that job alone; one of all jobs shows the list, too."""
    key = tmp_path / "tokens.key"
    tokens.write_new_key(key, add=False)

    with serving(manager_service(), security=Security(token_keys=key)) as address:
        worker = MemberWorker(address, "mine", with_token(key, "mine"))
        with ManagerClient(address, with_token(key, tokens.ALL_JOBS)) as client:
            assert [job.job for job in client.jobs().jobs] == ["mine"]
            assert client.status("mine").summary.members == 1
        with ManagerClient(address, with_token(key, "mine")) as client:
            assert client.jobs("mine").jobs[0].job == "mine"
            with pytest.raises(UnauthorisedError):
                client.jobs()
        with ManagerClient(address, with_token(key, "other")) as client, pytest.raises(UnauthorisedError):
            client.status("mine")
        worker.close()


def test_no_job_is_called_like_all_jobs():
    """The name that tokens have for all jobs is no job's."""
    with serving(manager_service()) as address, pytest.raises(InvalidRequestError, match="must not contain"):
        MemberWorker(address, tokens.ALL_JOBS)
