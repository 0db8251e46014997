"""Following the jobs of a real manager over real connections."""

import json
import uuid
from dataclasses import asdict

import pytest

import idl
from batchsize_manager.client import ManagerClient
from batchsize_manager.service import ManagerConfig, ManagerService
from evenpace.overview.feed import Feed
from idl.errors import EvenpaceError
from tests.services import MemberWorker, address_of_our_own, manager_service, serving


def test_a_job_is_followed_from_its_beginning_to_its_end():
    """Each poll adds what is new: iterations, members, events, state."""
    with serving(manager_service()) as address, ManagerClient(address) as client:
        feed = Feed(client)
        feed.poll()
        assert feed.jobs == {}
        worker = MemberWorker(address, "followed")
        for iterations in (3, 5):
            for _ in range(iterations):
                worker.iterate()
            feed.poll()
        job = feed.jobs["followed"]
        figures = job.view.figures(job.states)
        assert (figures.iterations, figures.iteration, figures.samples) == (8, 7, 80)
        assert [(one.worker, one.state) for one in figures.workers] == [("good", "working")]
        assert (job.behind, feed.behind) == (0, 0)
        json.dumps(asdict(figures), allow_nan=False)
        worker.close()
        feed.poll()
        assert feed.jobs["followed"].summary.state == "ended"
        assert [event.number for event in job.events] == [0, 1]
        assert job.events[-1].text == "good left"


def test_a_new_run_of_a_name_replaces_the_earlier_one():
    """A job that has ended and is started again under its name has nothing of the earlier one."""
    with serving(manager_service()) as address, ManagerClient(address) as client:
        feed = Feed(client, ["again"])
        for iterations in (7, 2):
            worker = MemberWorker(address, "again")
            for _ in range(iterations):
                worker.iterate()
            feed.poll()
            assert feed.jobs["again"].view.figures().iterations == iterations
            worker.close()


def test_an_earlier_run_of_a_name_is_not_taken_for_the_running_one():
    """The running job is followed where the manager also lists one that has ended under its name."""
    with serving(manager_service()) as address, ManagerClient(address) as client:
        for iterations in (7, 2):
            worker = MemberWorker(address, "again")
            for _ in range(iterations):
                worker.iterate()
            if iterations == 7:
                worker.close()
        feed = Feed(client)
        for _ in range(2):
            feed.poll()
            assert feed.jobs["again"].summary.state == "running"
            assert (feed.jobs["again"].view.figures().iterations, feed.behind) == (2, 0)
        worker.close()


def test_only_the_jobs_asked_for_are_followed():
    """Others are left alone, and one that is not there is no error."""
    with serving(manager_service()) as address, ManagerClient(address) as client:
        workers = [MemberWorker(address, name) for name in ("one", "other")]
        feed = Feed(client, ["one", "nothing"])
        feed.poll()
        assert list(feed.jobs) == ["one"]
        for worker in workers:
            worker.close()


@pytest.mark.ci
def test_a_long_past_comes_in_pieces(tmp_path):
    """All iterations of a run that is in the manager's file only come in, over several polls."""
    for name, iterations in (("long", 2500), ("short", 1)):
        with (
            serving(ManagerService(ManagerConfig(state=tmp_path))) as address,
            ManagerClient(address) as client,
        ):
            worker = MemberWorker(address, name)
            for _ in range(iterations):
                worker.iterate()
            feed = Feed(client)
            feed.poll()
            while feed.behind:
                before = feed.behind
                feed.poll()
                assert feed.behind < before
            assert feed.jobs[name].view.figures().iterations == iterations
            worker.close()


def test_a_manager_that_is_away_leaves_what_was_known():
    """A poll fails then, and the jobs are still there to be shown."""
    with serving(manager_service(), address=address_of_our_own()) as address:
        client = ManagerClient(address, timeout=5.0)
        worker = MemberWorker(address, "known")
        worker.iterate()
        feed = Feed(client)
        feed.poll()
        worker.close()
    with pytest.raises(EvenpaceError):
        feed.poll()
    assert feed.jobs["known"].view.figures().iterations == 1
    client.close()


def test_a_rewound_job_is_read_again():
    """After a rewind the view has the iterations of the later attempt, each of them once."""
    wire = idl.batchsize_manager
    with serving(manager_service()) as address, ManagerClient(address) as client:
        worker = MemberWorker(address, f"rewound-{uuid.uuid4().hex}")
        for _ in range(10):
            worker.iterate()
        name = worker.identity.job
        feed = Feed(client)
        feed.poll()
        worker.client.call("recover", wire.RecoverRequest(worker.identity, 0))
        worker.client.call("rewind", wire.RewindRequest(worker.identity, 1, 4))
        feed.poll()
        assert feed.jobs[name].view.figures().iterations == 4
        worker.iteration = 4
        for _ in range(3):
            request = wire.ReportRequest(worker.identity, worker.iteration, 0.5, 0.0, 0.5, 0.5, attempt=1)
            worker.client.call("report", request)
            worker.iteration += 1
        feed.poll()
        figures = feed.jobs[name].view.figures()
        assert (figures.iterations, figures.iteration, figures.samples) == (7, 6, 70)
        worker.close()
