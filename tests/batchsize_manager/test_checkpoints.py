"""A run that is saved, stopped and resumed ends as an uninterrupted one; the checkpoint is ordinary."""

import contextlib
import functools
import json
import uuid

import numpy as np
import pytest
import torch
from torch import nn

import idl
from evenpace.local.cluster import LocalCluster
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from idl.plan import Assignment, JobSpec, permutation
from idl.synchronisation import Synchronisation
from rpc.client import Client
from tests import float64
from tests.scripts import train_float64 as script
from tests.services import in_threads, manager_service, serving, shard_service
from worker.session import Session, SessionConfig
from worker.shard_clients import ShardClients
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute

EPOCHS, PER_EPOCH = 2, 8


@contextlib.contextmanager
def cluster(maxima, shards=1, minimum=1):
    """Run new services; yield a session for each worker, with its maximum of samples."""
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(serving(manager_service(workers=len(maxima))))
        addresses = tuple(stack.enter_context(serving(shard_service())) for _ in range(shards))
        sessions = [
            Session(
                SessionConfig(
                    manager, addresses, worker=f"w{i}", bounds=Bounds(minimum, most), barrier_timeout=60
                )
            )
            for i, most in enumerate(maxima)
        ]
        for session in sessions:
            stack.callback(session.close)
        yield sessions


class Training:
    """One worker's training, as in a script."""

    def __init__(self, session, optimizer):
        self.session = session
        self.model = script.make_model()
        self.optimizer = script.make_optimizer(optimizer, self.model)
        dataset = torch.utils.data.TensorDataset(*script.make_data())
        self.loader = DataLoader(dataset, script.BATCH, shuffle=True, seed=script.SEED, session=session)

    @property
    def parts(self):
        """Return the objects whose states a checkpoint has."""
        return {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}

    def load(self, path):
        """Load a checkpoint."""
        saved = torch.load(path)
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])

    def save(self, path):
        """Write a checkpoint."""
        torch.save({name: part.state_dict() for name, part in self.parts.items()}, path)

    def run(self, until=EPOCHS * PER_EPOCH, each=lambda: None):
        """Train up to an iteration; return the number of batches of each epoch."""
        distribute(self.optimizer, self.loader)
        batches = []
        for _ in range(EPOCHS):
            batches.append(0)
            for inputs, labels in self.loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(inputs), labels).backward()
                self.optimizer.step()
                batches[-1] += 1
                each()
                if self.session.assignment.iteration == until:
                    return batches
        return batches


def run_all(sessions, optimizer, first=None, until=EPOCHS * PER_EPOCH, save=None):
    """Train with all workers, from a checkpoint and up to one if given; return their trainings."""
    trainings = [Training(session, optimizer) for session in sessions]
    batches = {}

    def run(training):
        if first is not None:
            training.load(first)
        batches[training] = training.run(until)
        if save is not None and training is trainings[0]:
            training.save(save)

    in_threads(*(functools.partial(run, training) for training in trainings))
    return trainings, batches


def train_alone(optimizer_name, saved=None, first=0):
    """Train in plain PyTorch on the whole batches, from a checkpoint if given."""
    inputs, labels = script.make_data()
    model = script.make_model()
    optimizer = script.make_optimizer(optimizer_name, model)
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    spec = JobSpec(script.SAMPLES, script.BATCH, script.SEED)
    batches = [
        batch
        for epoch in range(EPOCHS)
        for batch in torch.from_numpy(permutation(spec, epoch)).split(script.BATCH)
    ]
    for batch in batches[first:]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
    return model, optimizer


def flat(model):
    """Return all parameters in one tensor."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def assert_same_state(one, other):
    """Check that two state dicts of optimisers have the same structure and, but for rounding, values."""
    assert one.keys() == other.keys()
    assert one["param_groups"] == other["param_groups"]
    assert one["state"].keys() == other["state"].keys()
    for index, values in one["state"].items():
        assert values.keys() == other["state"][index].keys()
        for key, value in values.items():
            there = other["state"][index][key]
            assert (value.shape, value.dtype) == (there.shape, there.dtype)
            torch.testing.assert_close(value, there, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("optimizer", "until"),
    [("sgd", PER_EPOCH), ("adamw", PER_EPOCH - 1)],
    ids=["between epochs", "before the last, smaller batch"],
)
def test_a_checkpoint_is_an_ordinary_one(tmp_path, optimizer, until):
    """Plain PyTorch goes on from ours, and ours from plain PyTorch's, to the same parameters and state.

    Other numbers of workers and shards, new services and uneven batches lose nothing.
    """
    path = tmp_path / "checkpoint.pt"
    with cluster((50, 20)) as sessions:
        run_all(sessions, optimizer, until=until, save=path)
    alone, own = train_alone(optimizer)
    without, _ = train_alone(optimizer, torch.load(path), first=until)
    assert (flat(without) - flat(alone)).abs().max() < 1e-9

    _, plain = train_alone(optimizer, torch.load(path), first=EPOCHS * PER_EPOCH)
    saved = torch.load(path)
    assert_same_state(saved["optimizer"], plain.state_dict())
    torch.save({**saved, "optimizer": plain.state_dict()}, path)
    with cluster((50, 20, 5), shards=2) as sessions:
        trainings, batches = run_all(sessions, optimizer, first=path)
        assert (flat(trainings[1].model) - flat(alone)).abs().max() < 1e-9
        assert_same_state(trainings[0].optimizer.state_dict(), own.state_dict())
    done, left = divmod(until, PER_EPOCH)
    for seen in batches.values():
        assert seen == [0] * done + [PER_EPOCH - left] + [PER_EPOCH] * (EPOCHS - done - 1)


def test_the_optimiser_keeps_nothing_here(tmp_path):
    """The optimiser's state takes no memory at the worker, before saving or after."""
    with cluster((64,)) as sessions:
        training = Training(sessions[0], "adam")
        training.run(2)
        assert not training.optimizer.state
        assert len(training.optimizer.state_dict()["state"]) == 4
        assert not training.optimizer.state


def test_the_optimisers_state_must_be_loaded_before():
    """Loading another state is an error once the parameter server has one."""
    with cluster((64,)) as sessions:
        training = Training(sessions[0], "adam")
        plain = training.optimizer.state_dict()
        distribute(training.optimizer, training.loader)
        with pytest.raises(InvalidRequestError, match=r"before evenpace\.torch\.distribute"):
            training.optimizer.load_state_dict(plain)
        with pytest.raises(InvalidRequestError, match="before the training begins"):
            training.loader.load_state_dict(training.loader.state_dict())


def test_parameters_with_different_steps_are_refused():
    """A state whose parameters had different numbers of steps is refused, and named."""
    with cluster((64,)) as sessions:
        training = Training(sessions[0], "adam")
        for count in (1, 2):
            for parameter in list(training.model.parameters())[:count]:
                parameter.grad = torch.ones_like(parameter)
            training.optimizer.step()
        with pytest.raises(InvalidRequestError, match="parameters with 1, 2 steps"):
            distribute(training.optimizer, training.loader)


def test_a_state_that_is_gone_is_not_given_out(shard):
    """A worker gets no state that does not match its parameters when the others have stepped meanwhile."""
    identity = idl.common.Identity(f"job-{uuid.uuid4().hex}/run", "w", uuid.uuid4().hex)
    shards = ShardClients(
        [Client(idl.parameter_server.ParameterServer, shard, "shard", call_timeout=30)], 30.0
    )
    layout = Layout("float64", "sgd", (Group(4, {"lr": 1.0, "momentum": 0.9}),))
    shards.identify(identity)
    shards.open(layout, Synchronisation(), np.zeros(4), Assignment(0, 0, 0, 1, 1), None)
    assert shards.state(0, np.empty(4)).slots == {}
    shards.push(Assignment(0, 0, 0, 1, 1), np.ones(4), None)
    for version in (1, -1):
        state = shards.state(version, np.empty(4))
        assert state.steps == 1
        assert state.slots["momentum_buffer"].tolist() == [1] * 4
    with pytest.raises(InvalidRequestError, match="state of iteration 0 is gone"):
        shards.state(0, np.empty(4))
    shards.close()


# -- real processes


@pytest.mark.slow
def test_new_processes_go_on(tmp_path, wait_until):
    """A restart of manager, shards and workers, in other numbers, changes nothing."""
    path, optimizer, until = tmp_path / "checkpoint.pt", "adam", 20
    for name, limits, shards, arguments in (
        ("before", ("64", "20"), 1, ["--stop-at", str(until)]),
        ("after", ("64", "20", "7"), 2, ["--resume", str(path)]),
    ):
        # Nobody's part is to be done by others while a busy machine holds it up.
        options = ["--silence", "600"]
        with LocalCluster(
            tmp_path / name, workers=len(limits), shards=shards, tolerance=0.0, manager_options=options
        ) as cluster:
            for i, limit in enumerate(limits):
                files = ["--out", str(tmp_path / f"{i}.npy")]
                files += ["--save", str(path)] if (name, i) == ("before", 1) else []
                cluster.start_worker(
                    f"w{i}",
                    float64.SCRIPT,
                    ["--optimizer", optimizer, *arguments, *files],
                    options={"--max-batch-size": limit},
                )
            wait_until(lambda running=cluster: not running.check(), "the end of training")
    alone = float64.train_alone(optimizer)
    for i in range(3):
        assert np.abs(np.load(tmp_path / f"{i}.npy") - alone).max() < 1e-9
        sizes = json.loads((tmp_path / f"{i}.json").read_text())
        assert len(sizes) == float64.EPOCHS * PER_EPOCH - until
