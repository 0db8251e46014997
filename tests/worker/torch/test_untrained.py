"""What a PyTorch model has beside the parameters that are trained: workers take it from the first one."""

import threading

import pytest
import torch
from torch import nn

from idl.errors import InvalidRequestError
from tests.services import OpenServices, in_threads
from tests.worker.squares import Squares
from worker import untrained as common
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute
from worker.torch.untrained import untrained, untrained_tensors


class Drawn(nn.Module):
    """A model with a part of each kind, drawn without a seed."""

    def __init__(self):
        super().__init__()
        self.trained = nn.Linear(2, 1)
        self.frozen = nn.Linear(3, 2).requires_grad_(False)
        self.register_buffer("features", torch.randn(3, 5).bfloat16().t())
        self.register_buffer("mask", torch.rand(70) > 0.5, persistent=False)
        self.register_buffer("scale", torch.rand((), dtype=torch.float64))
        self.register_buffer("order", torch.randint(2**60, (7,)))
        self.register_buffer("none", None)
        self.norm = nn.InstanceNorm1d(2, track_running_stats=True)

    def forward(self, x):
        """Return an output for each sample."""
        return self.trained(self.frozen(x))


def distributed(session, model, also=(), size=24):
    """Make a model's loader and optimiser, and distribute it."""
    loader = DataLoader(Squares(size), 4, session=session)
    return loader, distribute(torch.optim.SGD(model.parameters(), lr=0.1), loader, model, also=also)


def all_of(model):
    """Return all tensors of a model, by name."""
    return dict([*model.named_parameters(), *model.named_buffers()])


def is_equal(ours, theirs):
    """Return whether two models have the same tensors."""
    theirs = all_of(theirs)
    return all(torch.equal(tensor, theirs[name]) for name, tensor in all_of(ours).items())


def test_all_of_a_model_is_the_first_workers():
    """A worker that joins has the frozen layers, the buffers, and other objects' states of the first one."""
    models, teachers = [Drawn() for _ in range(2)], [Drawn() for _ in range(2)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**i) for i in range(2)]
    assert not is_equal(models[0], models[1])
    with OpenServices(1, 2) as services:
        sessions = [services.session(f"w{i}") for i in range(2)]
        loader, optimizer = distributed(sessions[0], models[0], (teachers[0], scalers[0]))
        has_joined = threading.Event()

        def join():
            distributed(sessions[1], models[1], (teachers[1], scalers[1]))
            has_joined.set()
            sessions[1].close()

        def train():
            while not has_joined.is_set():
                for _ in loader:
                    optimizer.step()

        in_threads(train, join)
    assert is_equal(models[1], models[0])
    assert repr(teachers[1].state_dict()) == repr(teachers[0].state_dict())
    assert scalers[1].state_dict() == scalers[0].state_dict()


def taken(theirs, ours, also=((), ())):
    """Let a model take from another one."""
    given, own = (
        untrained(untrained_tensors(model, (), ()), objects)
        for model, objects in zip((theirs, ours), also, strict=True)
    )
    own.take(given.encoded())


def test_what_is_too_large_to_be_sent_is_refused_where_it_differs(monkeypatch):
    """Large frozen models are compared, and the error says which of their tensors differs, and what to do."""
    one, other = Drawn(), Drawn()
    monkeypatch.setattr(common, "_SENT", 0)
    other.trained = one.trained
    taken(one, one)
    with pytest.raises(InvalidRequestError, match=r"frozen.weight of shape \(2, 3\), float32 .* seed"):
        taken(one, other)
    monkeypatch.undo()
    one.frozen.extra = nn.Linear(1, 1)
    with pytest.raises(
        InvalidRequestError, match=r"has frozen.extra.weight of .* first worker's has feature"
    ):
        taken(Drawn(), one)


def test_a_nested_state_arrives_as_it_was():
    """States of optimisers have numbers as keys, tuples, tensors and None; what cannot be sent is refused."""
    parameter = nn.Parameter(torch.ones(3))
    theirs, ours = torch.optim.Adam([parameter], lr=0.3, betas=(0.5, 0.6)), torch.optim.Adam([parameter])
    parameter.grad = torch.tensor([1.0, float("nan"), 2.0])
    theirs.step()
    model = nn.Linear(1, 1)
    taken(model, model, ((theirs,), (ours,)))
    assert repr(ours.state_dict()) == repr(theirs.state_dict())
    with pytest.raises(InvalidRequestError, match="0 objects, but 1 on the first"):
        taken(model, model, ((theirs,), ()))
    theirs.state_dict = lambda: {"a": [object()]}
    with pytest.raises(InvalidRequestError, match=r"state\[0\]\['a'\]\[0\] is of builtins.object"):
        taken(model, model, ((theirs,), (ours,)))


def move(model):
    """Move a buffer, as a forward pass does that follows the batch."""
    model.features[0] += 1


def clamp(model):
    """Write past PyTorch's count of a tensor's writes."""
    model.trained.weight.data.clamp_(0.5, 0.6)


def cast_and_back(model):
    """Have other memory, and the same values."""
    model.trained.weight.data = model.trained.weight.data.clone()
    model.frozen.weight.data = model.frozen.weight.data.double().float()


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (move, "features was changed between a batch and its step"),
        (clamp, "trained.weight was changed outside of optimizer.step()"),
        (cast_and_back, None),
    ],
)
def test_values_that_a_step_would_lose_are_warned_of_once(caplog, change, warning):
    """What each worker changes by itself is seen within a few steps, however it is written."""
    model = Drawn()
    with OpenServices(1) as services:
        loader, optimizer = distributed(services.session("w"), model)
        for _ in loader:
            model(torch.rand(4, 3)).mean().backward()
            change(model)
            optimizer.step()
            model.frozen.weight.data.lerp_(torch.zeros(2, 3), 0.1)  # as an average of weights, after a step
    said = [record.message for record in caplog.records if "was changed" in record.message]
    assert len(said) == (warning is not None)
    assert all(text.startswith(warning) for text in said)


@pytest.mark.parametrize(
    ("micro_batch", "advice"), [(None, "part .*--min-batch-size"), (1, "micro-batch .*`micro_batch`")]
)
def test_batch_normalisation_of_one_value_is_refused(micro_batch, advice):
    """The error names the layer and what to do; images have several values, and evaluation needs none."""
    images, flat = nn.BatchNorm2d(3), nn.BatchNorm1d(3)
    model = nn.Sequential(images, nn.Flatten(), flat)
    with OpenServices(1, 1) as services:
        loader = DataLoader(Squares(24), 4, session=services.session("w"), micro_batch=micro_batch)
        distribute(torch.optim.SGD(model.parameters(), lr=0.1), loader, model)
        images(torch.randn(1, 3, 2, 2))
        for layer, one in ((images, torch.randn(1, 3, 1, 1)), (flat, torch.randn(1, 3))):
            with pytest.raises(InvalidRequestError, match=rf"\d: BatchNorm\dd has one value .*{advice}"):
                layer(one)
            layer.eval()(one)
