"""Training where each worker has only a part of the data: here some of the classes, the worst case.

Start it with `evenpace worker`, as docs/data.md shows, with the number of this worker's part as `--part`.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import evenpace

parser = argparse.ArgumentParser()
parser.add_argument("--part", type=int, required=True)
parser.add_argument("--parts", type=int, default=2)
parser.add_argument("--partitions", default="127.0.0.1:4500", help="the DataPartitionManager")
options = parser.parse_args()

torch.manual_seed(1)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
mine = labels[:1500] % options.parts == options.part
part = TensorDataset(images[:1500][mine], labels[:1500][mine])

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
loss_function = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = evenpace.torch.PartitionedLoader(part, batch_size=128, partitions=options.partitions)
optimizer = evenpace.torch.distribute(optimizer, loader, model)

for _ in loader.epochs(15):
    for batch, targets in loader:
        optimizer.zero_grad()
        loss_function(model(batch), targets).backward()
        optimizer.step()

with torch.no_grad():
    correct = (model(images[1500:]).argmax(1) == labels[1500:]).sum().item()
print(f"accuracy {correct / len(labels[1500:]):.1%}")
