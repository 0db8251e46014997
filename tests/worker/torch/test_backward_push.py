"""Gradients are pushed while the backward pass computes them, and the result is that of one big batch."""

import itertools
import logging
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

import evenpace
from batchsize_manager.client import ManagerClient
from idl.errors import InvalidRequestError
from idl.plan import JobSpec, permutation
from tests.services import OpenServices, in_threads, manager_process, shard_process
from worker import early_push
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute

SAMPLES, BATCH, SEED, EPOCHS = 96, 12, 3, 2
SPEC = JobSpec(SAMPLES, BATCH, SEED)
BUCKET_MB = 100 / 2**18  # of float32: a hundred elements
TRIALS = 3  # iterations, after which pushes begin


class Rows(torch.utils.data.Dataset):
    """Inputs and targets that a seed gives."""

    def __init__(self):
        generator = torch.Generator().manual_seed(SEED)
        self.inputs = torch.randn(SAMPLES, 7, dtype=torch.float64, generator=generator)
        self.targets = torch.randn(SAMPLES, 5, dtype=torch.float64, generator=generator)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


def make_model():
    """Make the same five layers each time."""
    generator = torch.Generator().manual_seed(SEED)
    layers = [nn.Linear(a, b, dtype=torch.float64) for a, b in itertools.pairwise((7, 300, 300, 300, 5))]
    model = nn.Sequential(*itertools.chain(*zip(layers, itertools.repeat(nn.Tanh()), strict=False)))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05, generator=generator)
    return model


def make_optimizer(model):
    """Make an optimiser of two groups, whose parameters alternate in the model."""
    weights, biases = list(model.parameters())[::2], list(model.parameters())[1::2]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "lr": 0.05}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def scale(iteration, model):
    """Change gradients in place, as clipping does after the backward pass."""
    for parameter in model.parameters():
        parameter.grad.mul_(0.5)


def scale_late(iteration, model):
    """Change gradients from some iteration on."""
    if iteration >= 6:
        scale(iteration, model)


def change_data_late(iteration, model):
    """Change one element of a gradient where autograd does not see it."""
    if iteration >= 6:
        next(reversed(list(model.parameters()))).grad.data[0] = 0.0


def halve_rate_late(iteration, model):
    """Set another learning rate between the backward pass and the step."""
    model.optimizer.param_groups[0]["lr"] = 0.1 if iteration < 6 else 0.05


def step_twice_backward(iteration, model):
    """Go backward once more, so that gradients add up."""
    sum(parameter.square().sum() for parameter in model.parameters()).backward()


def leave(iteration, model):
    """Change nothing."""


CHANGES = [leave, scale, scale_late, change_data_late, halve_rate_late, step_twice_backward]


def train_alone(change):
    """Train in one process on whole batches; return the parameters."""
    rows, model = Rows(), make_model()
    optimizer = model.optimizer = make_optimizer(model)
    iteration = 0
    for epoch in range(EPOCHS):
        for batch in torch.from_numpy(permutation(SPEC, epoch)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(rows.inputs[batch]), rows.targets[batch]).backward()
            change(iteration, model)
            optimizer.step()
            iteration += 1
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def train(session, change=leave, before_step=lambda iteration: None, **options):
    """Train with one worker's part of each batch; return the parameters, and its session's attempts."""
    model = make_model()
    optimizer = model.optimizer = make_optimizer(model)
    loader = DataLoader(Rows(), BATCH, shuffle=True, seed=SEED, session=session)
    options = {"bucket_cap_mb": BUCKET_MB} | options
    distribute(optimizer, loader, model, **options)
    attempts = set()
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            iteration = session.assignment.iteration
            change(iteration, model)
            before_step(iteration)
            attempts.add(session.assignment.attempt)
            optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach(), attempts


def assert_passes_are_timed(records):
    """Check that the times of a pass are known, as parts of the whole, once it pushes its buckets."""
    assert len(records) == EPOCHS * SAMPLES // BATCH
    for record in records:
        for part in record.parts.values():
            if record.iteration < TRIALS:
                assert np.isnan(part.backward_time)
                continue
            assert 0 < part.first_bucket_time < part.backward_time < part.batch_processing_time
            assert min(part.other_buckets_time, part.last_bucket_time, part.communication_time) > 0


def round_gradients(iteration, model):
    """Round gradients to bfloat16, as they may be pushed."""
    for parameter in model.parameters():
        parameter.grad = parameter.grad.float().bfloat16().double()


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "push_dtype"), [(1, "bfloat16"), (3, None)])
def test_a_gradient_arrives_before_the_step(wait_until, shards, push_dtype):
    """Each shard has a part of the gradient before the step, which may be rounded, and none has all of it."""

    def look(iteration):
        if iteration >= 4:
            wait_until(lambda: all(services.arrived()), "the first buckets")
        assert not services.complete()

    with OpenServices(1, shards) as services:
        parameters, attempts = train(services.session("w", push_dtype=push_dtype), before_step=look)
        with ManagerClient(services.manager) as client:
            assert_passes_are_timed(client.history("default", 0)[1])
    assert attempts == {0}
    alone = train_alone(round_gradients if push_dtype else leave)
    torch.testing.assert_close(parameters, alone, rtol=0, atol=1e-12)


@pytest.mark.ci
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_gradients_afterwards_is_in_the_step(change, caplog):
    """Whatever a script does between the backward pass and the step, the result is one process's."""
    caplog.set_level(logging.INFO)
    with OpenServices(2, 2) as services:
        sessions = [services.session(name) for name in ("w0", "w1")]
        trained = []
        in_threads(*(lambda s=session: trained.append(train(s, change)) for session in sessions))
    alone = train_alone(change)
    for parameters, attempts in trained:
        torch.testing.assert_close(parameters, alone, rtol=0, atol=1e-12)
        is_late = change.__name__.endswith("late")
        assert (max(attempts) > 0) == is_late, "only what had been pushed has to be taken back"
    said = "are pushed by optimizer.step(), not while the backward pass runs" in caplog.text
    assert said == (change is not leave)


@pytest.mark.parametrize("slow", [3, 2])
def test_a_backward_pass_for_which_no_shard_waits_is_not_pushed_early(monkeypatch, caplog, slow):
    """Unless it was once only that it took so long from one bucket to the next."""
    monkeypatch.setattr(early_push, "_MOST_SECONDS", 0.2)
    caplog.set_level(logging.INFO)
    early = []

    def look(iteration):
        if iteration < slow:
            time.sleep(0.25)
        early.append(any(services.arrived()))

    with OpenServices(1) as services:
        _, attempts = train(services.session("w"), before_step=look)
    assert attempts == {0}
    assert ("no shard waits for so long" in caplog.text) == (slow == 3)
    if slow == 3:
        assert not any(early)


def train_and_fail(manager, shard):
    """Train in a session of this process's, and fail before a step."""

    def fail(iteration):
        assert iteration < 5, "the script has failed"

    train(evenpace.connect(manager, shard), before_step=fail)


@pytest.mark.ci
def test_a_script_that_fails_between_backward_pass_and_step_ends():
    """A push that waits for the rest of its gradient does not keep the process from ending."""
    with manager_process() as manager, shard_process() as shard:
        command = [sys.executable, "-m", "tests.scripts.call", __name__, "train_and_fail"]
        command += [str(manager), str(shard)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "the script has failed" in ended.stderr


@pytest.mark.parametrize("size", [0, -1.0, float("nan")])
def test_a_bucket_of_nothing_is_refused(size):
    """A bucket must have elements."""
    with OpenServices(1) as services, pytest.raises(InvalidRequestError, match="bucket_cap_mb"):
        train(services.session("w"), bucket_cap_mb=size)
