"""Training of the small float64 network of `scripts/train_float64.py`, and what it must come to."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from idl.plan import JobSpec, permutation
from tests.scripts import train_float64 as script

SCRIPT = Path(script.__file__)
EPOCHS = 7  # of 8 iterations each, the last of them on a smaller batch


def train_alone(optimizer_name, shares=(1.0,), weighted=True, epochs=EPOCHS):
    """Train in one process on the whole batches, or on parts of them, averaged by size or naively."""
    inputs, labels = script.make_data()
    model = script.make_model()
    optimizer = script.make_optimizer(optimizer_name, model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    spec = JobSpec(script.SAMPLES, script.BATCH, script.SEED)
    for epoch in range(epochs):
        order = torch.from_numpy(permutation(spec, epoch))
        for batch in order.split(script.BATCH):
            optimizer.zero_grad()
            cuts = [round(share * len(batch)) for share in np.cumsum(shares)]
            for begin, end in zip([0, *cuts], cuts, strict=False):
                part = batch[begin:end]
                weight = len(part) / len(batch) if weighted else 1 / len(shares)
                loss = nn.functional.cross_entropy(model(inputs[part]), labels[part])
                (weight * loss).backward()
            optimizer.step()
        scheduler.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


def wait_for_end(cluster, wait_until):
    """Wait for the workers to end well."""
    wait_until(lambda: not cluster.check(), "the end of training")


def assert_as_alone(folder, names, epochs=EPOCHS):
    """All workers' final parameters are those of one process on the whole batches, to rounding."""
    alone = train_alone("sgd", epochs=epochs)
    for name in names:
        assert np.abs(np.load(folder / f"{name}.npy") - alone).max() < 1e-9
