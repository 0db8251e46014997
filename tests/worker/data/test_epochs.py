"""A loop over the epochs that are left: it begins with the job's present one, and ends with a release."""

import contextlib
import threading
from functools import partial

import numpy as np
import pytest

from batchsize_manager.client import ManagerClient
from evenpace.local.cluster import LocalCluster
from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from tests import EXAMPLES
from tests.services import in_threads
from tests.worker.least_squares import services
from worker.data.slices import Slices
from worker.session import Session, SessionConfig

SAMPLES, BATCH, EPOCHS = 12, 4, 4


@contextlib.contextmanager
def taking_part(manager, shards, name, samples=SAMPLES, momentum=0.0):
    """Make a worker's slices, in a job whose parameters are a single number."""
    session = Session(SessionConfig(manager, tuple(shards), worker=name, barrier_timeout=120))
    with contextlib.closing(session):
        slices = Slices(samples, BATCH, session)
        group = Group(1, {"lr": 0.1, "momentum": momentum})
        session.exchange.prepare(Layout("float64", "sgd", (group,)), np.zeros(1))
        yield slices


def go_through(slices, epochs, at=lambda epoch: None):
    """Train; return the epochs, and the batches of each."""
    seen = []
    for epoch in slices.epochs(epochs):
        seen.append((epoch, 0))
        for _ in slices:
            at(epoch)
            slices.session.finish_iteration()
            seen[-1] = epoch, seen[-1][1] + 1
    return seen


def members(manager):
    """Return how many workers the job has."""
    with ManagerClient(manager) as client:
        return client.jobs().jobs[0].members


def test_a_late_worker_begins_with_the_jobs_epoch(wait_until):
    """None of its epochs is without a batch; when all are over, there are none left."""
    seen = {}
    with services(1) as (manager, shards), taking_part(manager, shards, "a") as first:

        def late():
            with taking_part(manager, shards, "b") as second:
                seen["b"] = go_through(second, EPOCHS)

        thread = threading.Thread(target=late)

        def let_in(epoch):
            if epoch == 2 and not thread.is_alive() and not seen:
                thread.start()
                wait_until(lambda: members(manager) == 2, "the late worker's joining")

        seen["a"] = go_through(first, EPOCHS, let_in)
        thread.join(120)
        assert seen["a"] == [(epoch, SAMPLES // BATCH) for epoch in range(EPOCHS)]
        assert seen["b"] == [(2, 2), (3, 3)]
        assert list(first.epochs(EPOCHS)) == []


def test_a_released_worker_has_no_further_epochs():
    """It ends in the middle of one, and nothing is done for those after it."""
    with services(2) as (manager, shards), taking_part(manager, shards, "a") as first:
        seen = {}

        def other():
            with taking_part(manager, shards, "b") as second:
                seen["b"] = go_through(second, EPOCHS)

        thread = threading.Thread(target=other)
        thread.start()

        def drain(epoch):
            if epoch == 1 and not drained:
                drained.append(epoch)
                with ManagerClient(manager) as client:
                    client.drain("default", "a")

        drained = []
        seen["a"] = go_through(first, EPOCHS, drain)
        thread.join(120)
    assert [epoch for epoch, _ in seen["a"]] == [0, 1]
    assert [epoch for epoch, _ in seen["b"]] == list(range(EPOCHS))


def test_the_optimisers_state_is_refused_where_the_next_batch_has_no_part_for_a_worker():
    """The others may take that step at any time; elsewhere each worker gets the state of its parameters."""
    seen = {}
    with services(2) as (manager, shards):

        def train(name):
            with taking_part(manager, shards, name, samples=BATCH + 1, momentum=0.9) as slices:
                session, seen[name] = slices.session, []

                def save():
                    part = session.assignment
                    try:
                        saved = session.exchange.optimizer_state(part).steps
                    except InvalidRequestError as error:
                        saved = str(error)
                    seen[name].append((part.iteration, part.count, saved))

                session.before_batch.append(save)
                go_through(slices, 2)

        in_threads(partial(train, "a"), partial(train, "b"))
    for worker in "ab":
        for iteration, count, saved in seen[worker]:
            assert saved == iteration if count else "has none for this worker" in saved
    assert [sorted(count for _, count, _ in both) for both in zip(seen["a"], seen["b"], strict=True)] == [
        [2, 2],
        [0, 1],
        [2, 2],
        [0, 1],
    ]


def test_an_epoch_without_a_pass_is_an_error():
    """Else its loop would never end."""
    with services(1) as (manager, shards), taking_part(manager, shards, "a") as slices:
        epochs = slices.epochs(2)
        assert next(epochs) == 0
        with pytest.raises(InvalidRequestError, match="epoch 0 is over, but the loader was not gone through"):
            next(epochs)
        with pytest.raises(InvalidRequestError, match=r"epochs\(-1\): must be at least 0"):
            next(slices.epochs(-1))


@pytest.mark.slow
def test_a_worker_that_is_drained_before_its_first_batch_ends_well(tmp_path, wait_until):
    """Its script ends where it waits for the others, so that nobody starts it again."""
    with LocalCluster(tmp_path, workers=3) as cluster, ManagerClient(cluster.manager) as client:
        worker, _ = (cluster.start_worker(name, EXAMPLES / "train_digits_evenpace.py") for name in "ab")
        wait_until(lambda: [job.members for job in client.jobs().jobs] == [2], "both workers")
        client.drain("default", "a")
        wait_until(lambda: worker.popen.poll() is not None, "its end")
        log = worker.log.read_text()
        assert worker.popen.returncode == 0, log
        assert "drained by an operator; its script ends here" in log
        assert "Traceback" not in log
