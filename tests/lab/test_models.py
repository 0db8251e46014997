"""The workloads' networks: they are what their sources describe, and how a batch is split does not matter."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lab.models.cifarnet import CifarNet
from lab.models.linear import SparseLinear, SparseRows
from lab.models.resnet import ResNet32
from lab.models.transformer import ByteTransformer


def parameters(model):
    """Return the number of a model's parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def sparse_rows(dense):
    """A dense array (samples, features) as `SparseRows`."""
    lengths = (dense != 0).sum(1)
    _, columns = np.nonzero(dense)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return SparseRows(*map(torch.from_numpy, (columns, dense[dense != 0], offsets)))


def test_resnet32_has_the_published_size():
    """0.46 M parameters (He et al., table 6) in 32 layers with weights, and none in the shortcuts."""
    model = ResNet32()
    convolutions = 3 * 16 * 9 + 10 * 16 * 16 * 9 + (16 + 9 * 32) * 32 * 9 + (32 + 9 * 64) * 64 * 9
    normalisation = 2 * (11 * 16 + 10 * 32 + 10 * 64)
    assert parameters(model) == convolutions + normalisation + 64 * 10 + 10 == 464_154
    assert sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in model.modules()) == 32
    assert parameters(ResNet32(norm="group")) == parameters(model)


@pytest.mark.parametrize("training", [True, False])
def test_the_transformer_does_not_look_ahead(training):
    """A byte changes what is predicted after it, and nothing before."""
    model = ByteTransformer(context=12, width=16).train(training)
    text = torch.arange(10).unsqueeze(0)
    other = text.clone()
    other[0, 6] = 99
    with torch.no_grad():
        before, after = model(text), model(other)
    assert before.shape == (1, 10, 256)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert ((before - after).abs().amax(2)[:, 6:] > 1e-6).all()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_the_sparse_model_equals_a_dense_one(samples, features, seed):
    """Margins and gradients are those of `X w + b`, for samples without a feature, too."""
    generator = np.random.default_rng(seed)
    dense = generator.normal(size=(samples, features)) * (generator.random((samples, features)) < 0.4)
    weights = torch.from_numpy(generator.normal(size=(samples,)))
    model = SparseLinear(features).double()
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(generator.normal(size=(features, 1))))
        model.bias.fill_(0.5)
    margins = model(sparse_rows(dense))
    (margins * weights).sum().backward()
    matrix = torch.from_numpy(dense)
    torch.testing.assert_close(margins, (matrix @ model.weight).squeeze(1) + 0.5)
    torch.testing.assert_close(model.weight.grad.squeeze(1), matrix.T @ weights)
    torch.testing.assert_close(model.bias.grad, weights.sum(0, keepdim=True))


IMAGES = torch.randn(6, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SPLITTABLE = {
    "cifarnet": (CifarNet, IMAGES),
    "resnet32 with group norm": (lambda: ResNet32(norm="group"), IMAGES),
    "transformer": (lambda: ByteTransformer(context=8, width=16), torch.arange(48).view(6, 8)),
}


def gradient(model, inputs, cuts):
    """The mean gradient over a batch that is cut into parts, each weighted by its size."""
    model = copy.deepcopy(model)
    for part in torch.tensor_split(inputs, cuts):
        outputs = model(part).flatten(0, -2)
        targets = torch.full((len(outputs),), 3)
        (nn.functional.cross_entropy(outputs, targets) * len(part)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]) / len(inputs)


@pytest.mark.ci
@pytest.mark.parametrize(("make", "inputs"), SPLITTABLE.values(), ids=SPLITTABLE)
def test_an_uneven_split_gives_the_whole_batchs_gradient(make, inputs):
    """Parts of 1, 3 and 2 samples, weighted by their sizes, add up to the gradient of all six."""
    torch.manual_seed(1)
    model = make().double()
    whole = gradient(model, inputs, [])
    assert whole.abs().max() > 1e-3
    torch.testing.assert_close(gradient(model, inputs, [1, 4]), whole, rtol=1e-9, atol=1e-12)
