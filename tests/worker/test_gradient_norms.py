"""The norms of gradients on their way: from the shards by the workers to the records of the manager."""

import contextlib
import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import idl
from batchsize_manager.client import ManagerClient
from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerConfig, ManagerService
from batchsize_manager.storage.state_reader import open_state
from idl.gradient_norms import GradientNorms, StepNorms
from idl.layout import Group, Layout
from idl.plan import Assignment, permutation
from idl.preconditioning import STEPS
from tests.scripts.train_least_squares import SPEC, mean_gradient
from tests.services import MemberWorker, manager_service, serving, shard_service
from tests.worker.least_squares import Worker, trained_alone
from worker.gradient_norms import Cadence, OwnNorms, squared_norm

ITERATIONS = 30


def expected_norms(iteration, parts):
    """Those of the workers' slices of an iteration, at the parameters that one process has by then."""
    parameters = trained_alone(iteration)
    order = permutation(SPEC, parts[0].epoch)
    gradients = [(part.count, mean_gradient(parameters, order[part.start : part.end])) for part in parts]
    mean = sum(count * gradient for count, gradient in gradients) / sum(part.count for part in parts)
    return GradientNorms.of([(count, float(g @ g)) for count, g in gradients], float(mean @ mean))


@pytest.mark.parametrize("shards", [1, 2])
def test_records_have_the_norms_of_the_step_before(shards, tmp_path):
    """Over all shards and workers; those in the manager's state have them, too."""
    config = ManagerConfig("even", job=JobConfig(workers=3), state=tmp_path)
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(serving(ManagerService(config)))
        places = [stack.enter_context(serving(shard_service())) for _ in range(shards)]
        workers = [Worker(manager, places, name, ITERATIONS) for name in "abc"]
        done = [worker.end() for worker in workers]
        with ManagerClient(manager) as client:
            run, records = client.history("default", 0)
    assert len(records) == ITERATIONS
    assert records[0].norms is None
    for record in records[1:]:
        assert record.norms.iteration == record.iteration - 1
        expected = expected_norms(record.norms.iteration, [own[record.norms.iteration] for own in done])
        found = record.norms.norms
        assert (found.contributions, found.samples) == (expected.contributions, expected.samples)
        np.testing.assert_allclose([found.weighted, found.squared], [expected.weighted, expected.squared])
    with open_state(tmp_path) as state:
        assert state.records(run, 0, ITERATIONS) == records


def test_heartbeats_are_answered_with_the_noise_scale_once_it_is_known():
    """For workers' charts: nothing at first, then the ratio of what was reported, 64 samples here."""
    rng = np.random.default_rng(2)
    with serving(manager_service()) as manager:
        worker = MemberWorker(manager)
        heartbeat = idl.batchsize_manager.HeartbeatRequest(identity=worker.identity, attempt=0)
        assert worker.client.call("heartbeat", heartbeat).noise_scale is None
        for iteration in range(200):
            var, sqr = 64 + rng.normal(), 1 + 0.1 * rng.normal()
            squared = sqr + var / worker.BATCH
            weighted = var + worker.BATCH * squared  # of two contributions, whose estimates are these
            worker.iterate(StepNorms(iteration, GradientNorms(2, worker.BATCH, weighted, squared)))
        told = worker.client.call("heartbeat", heartbeat).noise_scale
        worker.close()
    assert told == pytest.approx(64, rel=0.1)


@pytest.fixture
def norms():
    """The norms of a worker, and a slice of eight samples of each iteration."""
    return OwnNorms(), [Assignment(iteration, 0, 8 * iteration, 8, 16) for iteration in range(3)]


def step(iteration, contributions=2, samples=16, weighted=40.0, squared=2.0):
    """What the shards tell of a step."""
    return StepNorms(iteration, GradientNorms(contributions, samples, weighted, squared))


def test_micro_batches_take_precedence_over_what_the_shards_know(norms):
    """They are more contributions; the norm of the sum is the shards'. Those without samples do not count."""
    own, parts = norms
    for count, squares in ((3, 4.0), (5, 2.0), (0, 7.0)):
        own.add(parts[0], count, squares)
    own.take_all(step(0))
    assert own.take() == step(0, contributions=2, samples=8, weighted=22.0)
    assert own.take() is None


def test_what_an_earlier_attempt_has_contributed_does_not_count(norms):
    """A job that goes back computes the slice again."""
    own, parts = norms
    own.add(parts[0], 8, 4.0)
    own.add(dataclasses.replace(parts[0], attempt=1), 8, 3.0)
    own.take_all(step(0))
    assert own.take() == step(0, contributions=1, samples=8, weighted=24.0)


def test_statistics_are_no_part_of_a_gradient():
    """Neither of its norm nor of a difference; here they are the last two elements."""
    layout = Layout("float64", "sgd", (Group(3, {}), Group(2, {}, statistics=True)))
    gradient = np.array([1.0, 2.0, 3.0, 50.0, 60.0])
    assert squared_norm(gradient, layout) == 14.0
    assert squared_norm(gradient, layout, minus=np.array([1.0, 1.0, 1.0, 0.0, 0.0])) == 5.0


def iterations_with_norms(elements, iterations, computing, norms, preparation):
    """Go through iterations, by a clock that is set; those with norms, and how often they came last."""
    now = 0.0
    cadence = Cadence(elements, lambda: now)
    taken, period = [], None
    for iteration in range(iterations):
        now += computing
        due = cadence.is_due(iteration)
        if due:
            taken.append(iteration)
            if iteration // STEPS != period:
                period = iteration // STEPS
                with cadence.preparing():
                    now += preparation
            with cadence.taking(iteration):
                now += norms / 2
        cadence.end(iteration)
        if due:
            with cadence.taking(iteration):  # of the sum over the workers
                now += norms / 2
    return taken, cadence.every


@given(norms=st.floats(2.5e-5, 0.2), preparation=st.floats(0.0, 0.2))
def test_norms_are_taken_as_often_as_a_quarter_of_a_hundredth_of_the_time_allows(norms, preparation):
    """Once a few were timed; and not more seldom than they must."""
    _, every = iterations_with_norms(2**20, 1000, 1.0, norms, preparation)

    def share(every):
        return norms / every + preparation / max(every, STEPS)

    assert share(every) <= 0.002525 * (1 + norms + preparation)
    if every > 1:
        assert share(every // 2 if every > STEPS else 1) > 0.002475


def test_a_worker_for_which_norms_are_dear_takes_them_where_the_others_do():
    """So that there are iterations of which all workers' norms are known."""
    late = []
    for norms in (0.00125, 0.015, 0.0375, 0.175):
        taken, _ = iterations_with_norms(2**20, 2000, 1.0, norms, 0.0)
        late.append({iteration for iteration in taken if iteration >= 1000})
    assert len(late[0]) == 1000
    for often, seldom in itertools.pairwise(late):
        assert seldom
        assert seldom < often


def test_norms_of_a_small_gradient_are_taken_in_every_iteration():
    """Whatever the clock says of times that are too short for it."""
    taken, _ = iterations_with_norms(1000, 100, 1e-6, 1.0, 1.0)
    assert len(taken) == 100
