"""Learning rates that follow the batch's size: their rules, and trainings against one process's."""

import contextlib
from functools import partial

import numpy as np
import pytest
import torch

from idl.errors import InvalidRequestError
from idl.plan import Scaling
from tests.worker.least_squares import services
from worker.learning_rates import factor_by
from worker.session import Session, SessionConfig
from worker.torch.ddp import weighted
from worker.torch.learning_rates import scale_lr
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute

SCALING = Scaling(400, 2.5, 17.0)
SCHEDULE = {0: 4, 1: 8, 2: 20}
INPUTS = torch.randn(42, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = INPUTS @ torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
RATE = 0.05


@pytest.mark.parametrize(
    ("rule", "optimizer", "factor"),
    [
        ("none", "sgd", 1.0),
        ("linear", "sgd", 4.0),
        ("sqrt", "sgd", 2.0),
        ("adascale", "adam", 2.5),
        ("auto", "sgd", 2.5),
        ("auto", "keras_adamw", 2.0),
        ("auto", "AdamW", 2.0),
        (lambda size, first: size / first / 2, "sgd", 2.0),
    ],
)
def test_each_rule_has_its_factor(rule, optimizer, factor):
    """Of a batch of 400 samples, whose gain is 2.5, where the script's first one is 100."""
    assert factor_by(rule, optimizer)(SCALING, 100) == factor


def test_a_rule_that_is_none_is_refused():
    """The error names what there is, or the call that gave no factor."""
    with pytest.raises(
        InvalidRequestError, match="scale_lr 'square': there are none, linear, sqrt, adascale, auto"
    ):
        factor_by("square", "sgd")
    for value in (0.0, -1.0, float("nan"), float("inf")):
        factor = factor_by(lambda size, first, value=value: value, "sgd")
        with pytest.raises(
            InvalidRequestError, match=r"scale_lr\(400, 100\) returned .* must be a number above 0"
        ):
            factor(SCALING, 100)


def batches(epochs):
    """Yield the whole batches of the schedule in order: their size but for the last, and the indices."""
    for epoch in range(epochs):
        size = SCHEDULE[epoch]
        for start in range(0, len(INPUTS), size):
            yield size, slice(start, start + size)


def loss_of(model, x, y):
    """Return the mean loss."""
    return ((model(x).squeeze(1) - y) ** 2).mean()


def make(optimizer):
    """Return a model and its optimiser."""
    model = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    made = optimizer(model.parameters(), lr=RATE)
    return model, made


def trained_alone(optimizer, power):
    """Return the parameters of one process, whose rates are the script's times a power of size over first."""
    model, made = make(optimizer)
    for step, (size, indices) in enumerate(batches(3)):
        made.zero_grad()
        loss_of(model, INPUTS[indices], TARGETS[indices]).backward()
        made.param_groups[0]["lr"] = RATE / (1 + step) * (size / 4) ** power
        made.step()
    return model.weight.detach().numpy()


def train(loader, model, made, weight=lambda loss: loss):
    """Train for three epochs, in which a scheduler sees the script's own rates; return the parameters."""
    schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1 / (1 + step))
    steps = 0
    for _ in range(3):
        for x, y in loader:
            made.zero_grad()
            weight(loss_of(model, x, y)).backward()
            made.step()
            steps += 1
            assert made.param_groups[0]["lr"] == pytest.approx(RATE / steps)
            schedule.step()
    return model.weight.detach().numpy()


RULES = [
    (torch.optim.SGD, "linear", 1.0),
    (torch.optim.Adam, "auto", 0.5),
    (torch.optim.SGD, lambda size, first: (size / first) ** 0.25, 0.25),
    (torch.optim.SGD, "none", 0.0),
]


@contextlib.contextmanager
def loading(at_shards=True, targets=TARGETS, sizes=SCHEDULE):
    """Yield the loader of a job of one worker, whose steps are taken at a shard or in the script."""
    with (
        services(1) as (manager, shards),
        contextlib.closing(Session(SessionConfig(manager, tuple(shards) * at_shards, worker="w"))) as session,
    ):
        yield DataLoader(torch.utils.data.TensorDataset(INPUTS, targets), sizes, session=session)


@pytest.mark.parametrize("at_shards", [True, False])
@pytest.mark.parametrize(("optimizer", "rule", "power"), RULES)
def test_steps_have_rates_by_the_size_of_the_batch(optimizer, rule, power, at_shards):
    """An epoch's last, smaller batch has those of the others; schedulers see the script's own rates.

    Without a parameter server the optimiser's own step is scaled.
    """
    model, made = make(optimizer)
    with loading(at_shards) as loader:
        if at_shards:
            distribute(made, loader, scale_lr=rule)
            ended = train(loader, model, made)
        else:
            scale_lr(made, loader, rule)
            weight = partial(weighted, ranks=1, session=loader.session)
            ended = train(loader, model, made, weight)
    assert np.abs(ended - trained_alone(optimizer, power)).max() < 1e-12


def test_the_step_of_the_script_is_not_scaled_beside_a_parameter_server():
    """The error says how it is done there."""
    with (
        loading() as loader,
        pytest.raises(InvalidRequestError, match="give scale_lr= to distribute"),
    ):
        scale_lr(make(torch.optim.SGD)[1], loader)


def test_a_resumed_job_goes_on_with_its_progress():
    """It is in the loader's state, and grows faster where batches are larger."""
    saved, found = None, []
    # Targets that no parameters explain, so that the noise is large.
    noise = torch.randn(42, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for _ in range(2):
        with loading(targets=noise, sizes={0: 1, 1: 8}) as loader:
            session = loader.session
            if saved is not None:
                loader.load_state_dict(saved)
            model, made = make(torch.optim.SGD)
            distribute(made, loader, scale_lr="adascale")
            for _ in range(2):
                for x, y in loader:
                    if (session.assignment.epoch, session.assignment.start) == (1, 16):
                        saved = saved or loader.state_dict()
                        found.append((session.assignment.iteration, loader.progress))
                    made.zero_grad()
                    loss_of(model, x, y).backward()
                    made.step()
    assert found[0] == found[1]
    iteration, progress = found[0]
    assert (saved["iteration"], saved["progress"]) == (iteration, progress)
    assert 42 + 2 < progress < 42 + 2 * 8
