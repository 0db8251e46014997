"""The script train_digits.py over many uneven workers: three lines and the loop over epochs differ.

Start it with `evenpace run examples/train_digits_evenpace.py --workers 2`.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import evenpace

torch.manual_seed(1)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
train, test = TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
loss_function = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = evenpace.torch.DataLoader(train, batch_size=128, shuffle=True)
optimizer = evenpace.torch.distribute(optimizer, loader, model)

for _ in loader.epochs(15):
    for batch, targets in loader:
        optimizer.zero_grad()
        loss_function(model(batch), targets).backward()
        optimizer.step()

with torch.no_grad():
    correct = sum((model(x.unsqueeze(0)).argmax() == y).item() for x, y in test)
print(f"accuracy {correct / len(test):.1%}")
