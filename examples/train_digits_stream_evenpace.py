"""Training on a stream over many uneven workers: a data set that can only be read in its order.

Start it with `evenpace worker`, as docs/data.md shows.
"""

import itertools

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import IterableDataset

import evenpace


class Digits(IterableDataset):
    """A stand-in for a data set that is read record by record, from files or over a network."""

    def __init__(self):
        digits = load_digits()
        self.images = torch.tensor(digits.images[:1500], dtype=torch.float32).unsqueeze(1) / 16
        self.labels = torch.tensor(digits.target[:1500])

    def __iter__(self):
        return zip(self.images, self.labels, strict=True)

    def iter_from(self, position):
        """Iterate from a position on; without it, a worker that resumes reads all samples before."""
        return itertools.islice(self, position, None)


torch.manual_seed(1)
digits = load_digits()
images = torch.tensor(digits.images[1500:], dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target[1500:])

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
loss_function = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = evenpace.torch.StreamLoader(Digits(), batch_size=128, size=1500, shuffle_buffer=500)
optimizer = evenpace.torch.distribute(optimizer, loader, model)

for _ in loader.epochs(15):
    for batch, targets in loader:
        optimizer.zero_grad()
        loss_function(model(batch), targets).backward()
        optimizer.step()

with torch.no_grad():
    correct = (model(images).argmax(1) == labels).sum().item()
print(f"accuracy {correct / len(labels):.1%}")
