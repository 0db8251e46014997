"""The script train_digits_ddp.py with batches balanced by each process's speed; the loader is evenpace's.

Start it with `evenpace run examples/train_digits_ddp_evenpace.py --workers 2 --all-reduce`, or by
`evenpace worker`, with torchrun or without, as docs/torch-distributed.md shows.
"""

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import evenpace

torch.manual_seed(1)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
train, test = TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
distributed.init_process_group("gloo")  # what PyTorch imports later may hold the group
model = DistributedDataParallel(model)
loss_function = nn.CrossEntropyLoss()
loader = evenpace.torch.DataLoader(train, batch_size=128, shuffle=True)
model = evenpace.torch.balance(model, loader, optimizer)

for _ in loader.epochs(15):
    for batch, targets in loader:
        optimizer.zero_grad()
        loss_function(model(batch), targets).backward()
        optimizer.step()

if distributed.get_rank() == 0:
    with torch.no_grad():
        correct = sum((model.module(x.unsqueeze(0)).argmax() == y).item() for x, y in test)
    print(f"accuracy {correct / len(test):.1%}")
if evenpace.session().released is None:  # the others go on without a worker that was drained
    distributed.barrier()
del model  # so that nothing holds the process group, whose threads end with it
distributed.destroy_process_group()
