"""Script of a worker of `evenpace lab bench sizes`: a small network, and a schedule of two batch sizes.

The size changes before every second epoch, so that each epoch that begins with a change is followed by one
that does not. All epochs have the same number of batches, and leave their last, smaller one out.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import evenpace
from lab.script_options import read_options

_FEATURES, _HIDDEN, _CLASSES = 64, 256, 10


def main() -> None:
    """Train for as many epochs as the command line says."""
    options = read_options()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    sizes = options.sizes
    samples = options.batches * max(sizes)
    data = TensorDataset(torch.randn(samples, _FEATURES), torch.randint(_CLASSES, (samples,)))
    schedule = {epoch: sizes[epoch // 2 % 2] for epoch in range(0, options.epochs, 2)}
    model = nn.Sequential(nn.Linear(_FEATURES, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, _CLASSES))
    loader = evenpace.torch.DataLoader(data, batch_size=schedule, shuffle=True, drop_last=True)
    optimizer = evenpace.torch.distribute(torch.optim.SGD(model.parameters(), lr=0.01), loader)
    loss_function = nn.CrossEntropyLoss()
    for _ in range(options.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss_function(model(inputs), labels).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
