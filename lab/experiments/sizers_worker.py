"""One worker of `evenpace lab experiment sizers`: trains until the loss over all samples is small enough.

Its argument is JSON. It writes a line of JSON for each epoch: the seconds of its loop so far, without the
looks at the loss.
"""

import json
import sys
import time
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import TensorDataset

import evenpace
from lab.data import load

_HIDDEN = 128  # units
_RATE = 0.05  # learning rate of the first batch


def main() -> None:
    """Train."""
    options = SimpleNamespace(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    data = load(options.data)
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    unseen, answers = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(images[0].numel(), _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, data.classes)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    loader = evenpace.torch.DataLoader(
        TensorDataset(images, labels), options.batch_size, shuffle=True, seed=options.seed
    )
    evenpace.torch.distribute(optimizer, loader, scale_lr=options.rule)
    loss_of = nn.CrossEntropyLoss()
    seconds, iterations = 0.0, 0
    for epoch in range(1, options.epochs + 1):
        began, size = 0.0, 0
        for batch, targets in loader:
            began = began or time.perf_counter()  # not before all workers are there
            size = loader.session.training.scaling.size
            optimizer.zero_grad()
            loss_of(model(batch), targets).backward()
            optimizer.step()
            iterations += 1
        seconds += time.perf_counter() - began
        with torch.no_grad():
            loss = loss_of(model(images), labels).item()
            accuracy = (model(unseen).argmax(1) == answers).float().mean().item()
        told = {"epoch": epoch, "seconds": seconds, "iterations": iterations, "size": size}
        sys.stdout.write(json.dumps({**told, "loss": loss, "accuracy": accuracy}) + "\n")
        sys.stdout.flush()
        if loss < options.loss:
            return


if __name__ == "__main__":
    main()
