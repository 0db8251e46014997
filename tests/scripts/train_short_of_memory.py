"""A worker's script: trains a wide float64 network within `within_memory`, with memory limited if asked."""

import argparse
import ctypes
import json
import resource
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn

import evenpace

SAMPLES, FEATURES, WIDTH, BATCH, SEED, EPOCHS = 160, 4, 100_000, 32, 3, 2
M_MMAP_THRESHOLD = -3  # of mallopt


def make_data():
    """A fixed regression task: (samples, features) and (samples, 1)."""
    inputs = np.random.default_rng(0).normal(size=(SAMPLES, FEATURES))
    return torch.from_numpy(inputs), torch.from_numpy(np.sin(inputs.sum(1, keepdims=True)))


def make_model():
    """Its activations take 100,000 numbers a sample, 800 kB, several times over."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).double()


def make_optimizer(model):
    """A rate at which the loss falls."""
    return torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory-mib", type=int, help="That may be allocated beyond what is at the start.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model()
    optimizer = make_optimizer(model)
    dataset = torch.utils.data.TensorDataset(*make_data())
    loader = evenpace.torch.DataLoader(dataset, BATCH, shuffle=True, seed=SEED)
    optimizer = evenpace.torch.distribute(optimizer, loader)
    pieces = []

    def forward_backward(inputs, targets):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        pieces.append(len(inputs))
        return loss

    step = evenpace.torch.within_memory(forward_backward, model, loader)
    step(*(part[:2] for part in make_data()))  # so that what is loaded at the first pass is loaded by now
    pieces.clear()
    if options.memory_mib is not None:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)  # what is freed goes back at once
        in_use = psutil.Process().memory_info().data
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (in_use + options.memory_mib * 2**20, hard))
    sizes, limits = [], []
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            step(inputs, targets)
            optimizer.step()
            limits.append(step.limit)
            sizes.append(len(inputs))
    parameters = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    np.save(options.out, parameters)
    saved = {"sizes": sizes, "pieces": pieces, "limits": limits}
    options.out.with_suffix(".json").write_text(json.dumps(saved))


if __name__ == "__main__":
    main()
