"""Following the jobs of a real manager over real connections."""

import json
from dataclasses import asdict

import pytest

from batchsize_manager.client import ManagerClient
from batchsize_manager.service import ManagerConfig, ManagerService
from evenpace.overview.feed import Feed
from tests.services import MemberWorker, manager_service, serving


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
    """Whoever has followed the earlier one, or sees both in the manager's list, has the one that runs."""
    with serving(manager_service()) as address, ManagerClient(address) as client:
        feed = Feed(client, ["again"])
        for iterations in (7, 2):
            worker = MemberWorker(address, "again")
            for _ in range(iterations):
                worker.iterate()
            for one in (feed, Feed(client)):
                one.poll()
                one.poll()
                assert one.jobs["again"].summary.state == "running"
                assert (one.jobs["again"].view.figures().iterations, one.behind) == (iterations, 0)
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
