"""A small classification in float64 on any device, which workers share, and one process that trains alone."""

import torch
from torch import nn

from idl.plan import JobSpec, permutation
from worker.torch.loader import DataLoader

SAMPLES, FEATURES, CLASSES, BATCH = 400, 32, 10, 64
SPEC = JobSpec(SAMPLES, BATCH, seed=5)
TOTALS = [BATCH] * (SAMPLES // BATCH) + [SAMPLES % BATCH]  # of an epoch's batches
MOST_DIFFERENCE = 1e-9  # of a parameter


def make_data(device):
    """Return inputs, (samples, features), and classes, (samples,), the same in every process."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, FEATURES, dtype=torch.float64, generator=generator)
    return inputs.to(device), torch.randint(CLASSES, (SAMPLES,), generator=generator).to(device)


def make_model(device):
    """Return a network, always with the same first parameters."""
    torch.manual_seed(2)
    layers = [nn.Linear(FEATURES, 128), nn.Tanh(), nn.LayerNorm(128), nn.Linear(128, CLASSES)]
    return nn.Sequential(*layers).double().to(device)


def make_optimizer(model):
    """Return the optimiser of every process."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def make_loader(session):
    """Return a worker's loader, which yields the numbers of samples, (count,)."""
    return DataLoader(list(range(SAMPLES)), BATCH, session=session, shuffle=True, seed=SPEC.seed)


def train(batches, optimizer, forward_backward, device):
    """Train on batches of the numbers of samples, and return each one's size."""
    sizes = []
    for batch in batches:
        optimizer.zero_grad()
        forward_backward(batch.to(device))
        optimizer.step()
        sizes.append(len(batch))
    return sizes


def passes(model, device):
    """Return a function that makes the forward and backward pass of some samples."""
    inputs, classes = make_data(device)

    def forward_backward(batch):
        nn.functional.cross_entropy(model(inputs[batch]), classes[batch]).backward()

    return forward_backward


def check_equal(trained, epochs, device):
    """Check each worker's parameters, (elements,), and that its sizes and the others' are the batches'."""
    model = make_model(device)
    batches = (b for epoch in range(epochs) for b in torch.from_numpy(permutation(SPEC, epoch)).split(BATCH))
    train(batches, make_optimizer(model), passes(model, device), device)
    for parameters, _ in trained:
        assert (parameters - flat(model)).abs().max() < MOST_DIFFERENCE
    assert [sum(parts) for parts in zip(*(sizes for _, sizes in trained), strict=True)] == TOTALS * epochs


def flat(model):
    """Return all parameters, (elements,)."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()
