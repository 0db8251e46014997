"""The preconditioner that `balance` takes from the optimiser of a rank."""

import pytest
import torch
from torch import nn

from worker.torch.gradient_norms import squared_norm
from worker.torch.preconditioner import Preconditioner, preconditioner_of


def make_model(dtype=torch.float64):
    """A convolution whose memory lies with the channels last, and a layer behind it."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(dtype)
    return model.to(memory_format=torch.channels_last)


def train(model, optimizer, steps):
    """Take steps with gradients that differ."""
    for _ in range(steps):
        optimizer.zero_grad()
        inputs = torch.randn(5, 3, 4, 4, dtype=next(model.parameters()).dtype)
        model(inputs).square().sum().backward()
        optimizer.step()


def direct(optimizer, parameter, steps, moment="exp_avg_sq", beta2=0.999, eps=1e-8):
    """P by its formula, (elements,)."""
    return 1 / ((optimizer.state[parameter][moment].flatten() / (1 - beta2**steps)).sqrt() + eps)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_it_is_of_the_bias_corrected_second_moment(kind):
    """With each group's own options."""
    model = make_model()
    convolution, layer = list(model[0].parameters()), list(model[2].parameters())
    own = {"params": layer, "betas": (0.5, 0.9), "eps": 0.1, "amsgrad": True}
    optimizer = kind([{"params": convolution}, own])
    train(model, optimizer, 12)
    found = Preconditioner(optimizer).of([*convolution, *layer], 12)
    expected = [direct(optimizer, p, 12) for p in convolution]
    expected += [direct(optimizer, p, 12, "max_exp_avg_sq", 0.9, 0.1) for p in layer]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_it_is_not_known_in_the_first_ten_steps():
    """A second moment of few gradients says little."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    preconditioner = Preconditioner(optimizer)
    for steps in range(10):
        assert preconditioner.of(list(model.parameters()), steps) is None
        train(model, optimizer, 1)
    assert preconditioner.of(list(model.parameters()), 10) is not None


def test_it_holds_for_ten_iterations():
    """From one whose number ten divides on, so that all ranks have the same."""
    model = make_model()
    optimizer, parameters = torch.optim.Adam(model.parameters()), list(model.parameters())
    train(model, optimizer, 15)
    preconditioner = Preconditioner(optimizer)
    first = preconditioner.of(parameters, 15)
    train(model, optimizer, 5)
    assert all(map(torch.equal, preconditioner.of(parameters, 19), first))
    for parameter, found in zip(parameters, preconditioner.of(parameters, 20), strict=True):
        torch.testing.assert_close(found, direct(optimizer, parameter, 20))


def test_elements_without_a_second_moment_count_as_zero():
    """Those whose gradient was always 0, and parameters that the optimiser does not step."""
    model = make_model()
    weight, bias = model[2].parameters()
    optimizer = torch.optim.Adam([weight])
    for _ in range(10):
        weight.grad = torch.ones_like(weight)
        weight.grad[0] = 0
        optimizer.step()
    of_weight, of_bias = Preconditioner(optimizer).of([weight, bias], 10)
    of_weight = of_weight.view(weight.shape)
    torch.testing.assert_close(of_weight[1], torch.ones_like(of_weight[1]))
    assert not of_weight[0].any()
    assert torch.equal(of_bias, torch.zeros_like(bias))


@pytest.mark.parametrize("as_parameters", [True, False])
def test_a_bucket_has_it_in_the_order_in_which_gradients_lie_in_memory(as_parameters):
    """As a convolution's do with the channels last; `DistributedDataParallel` lays most out as parameters."""
    model = make_model()
    optimizer, parameters = torch.optim.Adam(model.parameters()), list(model.parameters())
    train(model, optimizer, 10)
    buffer = torch.randn(sum(p.numel() for p in parameters), dtype=torch.float64)
    pieces = torch.split(buffer, [p.numel() for p in parameters])
    gradients = [
        piece.as_strided(p.shape, p.stride(), piece.storage_offset())
        if as_parameters
        else piece.view(p.shape)
        for piece, p in zip(pieces, parameters, strict=True)
    ]
    flat = Preconditioner(optimizer).flat(parameters, gradients, 10)
    expected = [
        (g.flatten() * direct(optimizer, p, 10)).square().sum()
        for g, p in zip(gradients, parameters, strict=True)
    ]
    assert parameters[0].stride() != parameters[0].contiguous().stride()
    assert squared_norm(buffer, flat) == pytest.approx(float(sum(expected)), rel=1e-12)


def test_norms_of_half_precision_are_preconditioned_in_float32():
    """The inverse of a small moment is no number in float16."""
    parameter = nn.Parameter(torch.zeros(4, dtype=torch.float16))
    optimizer = torch.optim.Adam([parameter], lr=0.0, eps=1e-3)
    for _ in range(10):
        parameter.grad = torch.full_like(parameter, 0.25)
        optimizer.step()
    (diagonal,) = Preconditioner(optimizer).of([parameter], 10)
    assert diagonal.dtype == torch.float32
    assert squared_norm(parameter.grad * 1000, diagonal) == pytest.approx(4e6, rel=0.05)


def test_millions_of_elements_are_summed_in_pieces():
    """Of float32, their sum would be too small by a thousandth."""
    gradient = torch.full((3_000_001,), 0.1)
    diagonal = torch.full_like(gradient, 3.0)
    assert squared_norm(gradient, diagonal) == pytest.approx(3_000_001 * 0.09, rel=1e-4)


def test_other_optimisers_have_the_norms_of_plain_gradients(caplog):
    """A line says so of those that have a preconditioner."""
    caplog.set_level("INFO")
    assert preconditioner_of(torch.optim.SGD(make_model().parameters(), lr=0.1)) is None
    assert preconditioner_of(None) is None
    assert not caplog.records
    assert preconditioner_of(torch.optim.Adagrad(make_model().parameters())) is None
    assert "optimizer Adagrad: the gradient noise is that of plain gradients" in caplog.text
