"""A worker's script: trains a wide float64 network within `within_memory`, with memory limited if asked."""

import argparse
import ctypes
import json
import mmap
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


def address_space(name):
    """Return VmSize or VmPeak of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def memory_of(call):
    """Return by how many bytes the process grows while it makes a call, at its largest."""
    call()  # what is loaded at the first call stays
    hidden = max(1, address_space("VmPeak") - address_space("VmSize"))  # growth below an earlier peak
    with mmap.mmap(-1, hidden, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0):
        before = address_space("VmSize")
        call()
        return address_space("VmPeak") - before


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--fitting",
        type=int,
        help="Limits memory after an iteration, so that so many samples fit, but not twice as many.",
    )
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
    if options.fitting is not None:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)  # what is freed goes back at once

        def run(samples):
            optimizer.zero_grad()
            forward_backward(*(part[:samples] for part in make_data()))

        few, many = (memory_of(lambda n=n: run(n)) for n in (options.fitting, 2 * options.fitting))
        optimizer.zero_grad()
    sizes, limits = [], []
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            step(inputs, targets)
            optimizer.step()
            limits.append(step.limit)
            sizes.append(len(inputs))
            if options.fitting is not None and len(sizes) == 1:  # the loop has what it needs by now
                pieces.clear()
                in_use = psutil.Process().memory_info().data
                _, hard = resource.getrlimit(resource.RLIMIT_DATA)
                resource.setrlimit(resource.RLIMIT_DATA, (in_use + (few + many) // 2, hard))
    parameters = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    np.save(options.out, parameters)
    saved = {"sizes": sizes, "pieces": pieces, "limits": limits}
    options.out.with_suffix(".json").write_text(json.dumps(saved))


if __name__ == "__main__":
    main()
