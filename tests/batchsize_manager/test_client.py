"""A manager's answers about its jobs, over real connections."""

import pytest

from batchsize_manager.client import ManagerClient
from batchsize_manager.service import ManagerConfig, ManagerService
from idl.errors import InvalidRequestError, UnauthorisedError
from rpc import tokens
from rpc.server import Security
from tests.services import MemberWorker, manager_service, serving, with_token


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
    """A token of a single job shows and changes that job alone; one of all jobs shows the list, too."""
    key = tmp_path / "tokens.key"
    tokens.write_new_key(key, add=False)

    with serving(manager_service(), security=Security(token_keys=key)) as address:
        worker = MemberWorker(address, "mine", with_token(key, "mine"))
        for job in ("mine", tokens.ALL_JOBS):
            with ManagerClient(address, with_token(key, job)) as client:
                assert client.jobs("mine").jobs[0].job == "mine"
                assert client.status("mine").summary.members == 1
                client.pause("mine")
                client.resume("mine")
                if job == tokens.ALL_JOBS:
                    assert [one.job for one in client.jobs().jobs] == ["mine"]
                else:
                    with pytest.raises(UnauthorisedError):
                        client.jobs()
        with ManagerClient(address, with_token(key, "other")) as client:
            for call in (client.status, client.pause):
                with pytest.raises(UnauthorisedError):
                    call("mine")
        worker.close()


def test_no_job_is_called_like_all_jobs():
    """The name that tokens have for all jobs is no job's."""
    with serving(manager_service()) as address, pytest.raises(InvalidRequestError, match="must not contain"):
        MemberWorker(address, tokens.ALL_JOBS)
