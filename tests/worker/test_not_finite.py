"""A gradient with a NaN: who had it first, and in which iteration, is said once; an option ends the job."""

import contextlib
import logging

import numpy as np
import pytest

from batchsize_manager.client import ManagerClient
from idl.errors import EvenpaceError
from idl.layout import Group, Layout
from idl.plan import Assignment
from ps.gradient_norms import NormMeter
from tests.services import serving, shard_service
from tests.worker.least_squares import Worker, services
from worker.gradient_norms import OwnNorms

ITERATIONS, BROKEN = 8, 3


def breaking(value):
    """Make a function that breaks one element of a worker's gradient for iteration `BROKEN`."""

    def at(session):
        if session.assignment.iteration == BROKEN:
            session.exchange.gradient.values[1] = value

    return at


def events(manager):
    """Return what a job's log says of gradients."""
    with ManagerClient(manager) as client:
        return [event.text for event in client.status("default").events if "gradient" in event.text]


@pytest.mark.parametrize(("value", "shards"), [(np.nan, 1), (-np.inf, 2)])
def test_the_first_is_named_once(shards, value, caplog):
    """Of those after it, whose gradients follow from broken parameters, the job's log has no line."""
    with services(3) as (manager, [first]), contextlib.ExitStack() as stack:
        places = [first, *(stack.enter_context(serving(shard_service())) for _ in range(shards - 1))]
        with caplog.at_level(logging.WARNING):
            workers = [
                Worker(manager, places, name, ITERATIONS, breaking(value) if name == "b" else lambda _: None)
                for name in "abc"
            ]
            for worker in workers:
                worker.end()
            found = events(manager)
    assert found == [f"the gradient of b for iteration {BROKEN} has a NaN or an infinity"]
    lines = [record.getMessage() for record in caplog.records if "NaN or an infinity" in record.getMessage()]
    assert sum(f"for iteration {BROKEN} has" in line for line in lines) == 1
    assert len(lines) == 3  # one of each worker's own


def test_an_option_ends_the_job():
    """All workers end with an error that names the first."""
    with services(2, end_on_nan=True) as (manager, shards):
        workers = [
            Worker(manager, shards, name, 10**6, breaking(np.nan) if name == "b" else lambda _: None)
            for name in "ab"
        ]
        for worker in workers:
            with pytest.raises(EvenpaceError, match=f"b for iteration {BROKEN} has a NaN .* a checkpoint"):
                worker.end()


def test_finite_gradients_are_no_news(caplog):
    """However large they are: their squares are infinite here."""
    with services(2) as (manager, shards):
        for worker in [Worker(manager, shards, name, ITERATIONS, breaking(1e200)) for name in "ab"]:
            worker.end()
        assert events(manager) == []
    assert "NaN" not in caplog.text


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("place", "finite"), [(0, False), (4, False), (5, True), (None, True)])
def test_statistics_are_no_gradient(optimizer, place, finite):
    """Only elements of parameters count, in whichever piece; Adam's are looked at before it has a moment."""
    import torch

    layout = Layout("float32", optimizer, (Group(5, {"lr": 0.1}), Group(3, {}, statistics=True)))
    gradient = torch.full((8,), 2e19)  # its square is not finite
    if place is not None:
        gradient[place] = torch.nan
    meter = NormMeter(layout)
    assert meter.is_finite(0, gradient) == finite
    assert (meter.is_finite(0, gradient[:3]) and meter.is_finite(3, gradient[3:])) == finite


def test_reduced_gradients_are_looked_at_by_their_own_norms():
    """A worker's own norm, and not the sum's, tells whose gradient it was; an unknown norm tells nothing."""
    part = Assignment(3, 0, 0, 4, 8)
    norms = OwnNorms()
    norms.add(part, 4, 1.0)
    norms.take_reduced(3, np.nan)
    assert (norms.take(), norms.take_not_finite()) == (None, None)
    norms.add(part, 4, np.inf)
    norms.take_reduced(3, np.inf)
    norms.take()
    assert (norms.take_not_finite(), norms.take_not_finite()) == (3, None)
    for _ in range(2):
        norms.add(part, 4, 1.0, once=True)  # a second pass makes it unknown
    norms.take_reduced(3, 1.0)
    norms.take()
    assert norms.take_not_finite() is None
