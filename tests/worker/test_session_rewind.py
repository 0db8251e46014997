"""A session whose job is rewound, as its loaders see it: batches are repeated, even of earlier epochs."""

import contextlib

import numpy as np
import pytest
import torch

from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerConfig, ManagerService
from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from idl.plan import permutation
from tests.scripts.train_least_squares import (
    FEATURES,
    INPUTS,
    RATE,
    SPEC,
    TARGETS,
    go_through,
    trained_alone,
)
from tests.services import manager_service, send_back, serving, shard_service
from tests.worker.least_squares import Worker
from worker.exchanges.parameter_server import ParameterServer
from worker.session import Session, SessionConfig
from worker.shard_clients import ShardClients
from worker.torch.loader import DataLoader

ITERATIONS = 3 * SPEC.iterations_per_epoch


@contextlib.contextmanager
def alone(folder):
    """Yield the manager, and the session of the one worker of a job whose shard keeps checkpoints."""
    with (
        serving(manager_service()) as manager,
        serving(shard_service(state=folder, checkpoint_every=10)) as address,
        contextlib.closing(Session(SessionConfig(manager, (address,), worker="w"))) as session,
    ):
        yield manager, session


@pytest.mark.ci
@pytest.mark.parametrize(("at", "back", "num_workers"), [(32, 10, 1), (17, 10, 0), (30, 30, 1)])
def test_a_loop_goes_through_its_batches_again(tmp_path, at, back, num_workers):
    """Batches are repeated within the current pass; those of an earlier epoch in that epoch's order."""
    with alone(tmp_path) as (manager, session):
        dataset = torch.utils.data.TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(TARGETS))
        loader = DataLoader(
            dataset,
            SPEC.total_batch_size,
            session=session,
            shuffle=True,
            seed=SPEC.seed,
            num_workers=num_workers,
        )
        layout = Layout("float64", "sgd", (Group(FEATURES, {"lr": RATE}),))
        session.exchange.prepare(layout, np.zeros(FEATURES))
        session.start_training()
        seen = []
        for _ in range(3):
            for inputs, targets in loader:
                done = session.assignment
                order = permutation(SPEC, done.epoch)[done.start : done.start + done.count]
                assert np.array_equal(inputs.numpy(), INPUTS[order])
                error = inputs.numpy() @ session.exchange.parameters - targets.numpy()
                session.exchange.gradient.values[:] = error @ inputs.numpy() / len(targets)
                if done.iteration == at and done.attempt == 0:
                    send_back(session, manager, back)
                session.finish_iteration()
                seen.append((done.attempt, done.iteration))
        again = [(1, iteration) for iteration in range(back, ITERATIONS)]
        assert seen == [(0, iteration) for iteration in range(at + 1)] + again
        assert np.abs(session.exchange.parameters - trained_alone(ITERATIONS)).max() < 1e-12


def test_what_a_recovery_waits_for_is_not_taken_off_the_next_batch_processing_time(tmp_path, monkeypatch):
    """A recovery's waiting is not subtracted from the next batch processing time."""
    waits, pull = [], ShardClients.pull
    monkeypatch.setattr(ShardClients, "pull", lambda *of, **how: pull(*of, **how) + sum(waits))
    with alone(tmp_path) as (manager, session):
        parts = go_through(session, 20)
        for _ in range(15):
            next(parts)
        send_back(session, manager, 10)
        take = ParameterServer.take
        monkeypatch.setattr(ParameterServer, "take", lambda *given: take(*given) or waits.clear())
        waits.append(3600.0)
        assert [part.assignment.iteration for part in parts] == [15, *range(10, 20)]
        assert not waits
        assert np.abs(session.exchange.parameters - trained_alone(20)).max() < 1e-12


class Overeager(Worker):
    """A worker that tries to take a second step after each of its slices."""

    def _train(self):
        self.refusals = []
        for part in go_through(self.session, self._iterations, self._at):
            self.done.append(part.assignment)
            try:
                self.session.finish_iteration()
            except InvalidRequestError as error:
                self.refusals.append(str(error))


@pytest.mark.parametrize("lookahead", [0, 2])
def test_a_step_needs_a_slice_of_its_own(tmp_path, lookahead):
    """A second step changes nothing, also where a slice was another's, and where the job goes back."""
    sent_back = []

    def at(session):
        if session.assignment.iteration == 25 and not sent_back:
            sent_back.append(session.assignment.attempt)
            send_back(session, manager, 20)

    config = JobConfig(workers=2, lookahead=lookahead)
    with (
        serving(ManagerService(ManagerConfig("even", job=config))) as manager,
        serving(shard_service(state=tmp_path, checkpoint_every=10)) as shard,
    ):
        stays, leaves = (Overeager(manager, [shard], *args) for args in (("a", 30, at), ("b", 5)))
        leaves.end()
        stays.end()
        assert sent_back
        for worker in (stays, leaves):
            assert len(worker.refusals) == len(worker.done)
            assert all("samples were not loaded: take one step" in text for text in worker.refusals)
        assert lookahead or stays.session.meter.tally.pieces == 1
        assert np.abs(stays.session.exchange.parameters - trained_alone(30)).max() < 1e-12


def test_a_job_has_trained_from_its_first_complete_iteration_on(tmp_path):
    """From the first complete iteration on, parameters that shards have lost are an error."""
    with alone(tmp_path) as (_, session):
        next(go_through(session, 20))
        assert session._membership.has_trained()
