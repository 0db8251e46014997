"""Train a network with batch normalisation, dropout and random augmentation in micro-batches.

    evenpace worker --manager HOST:PORT [--ps HOST:PORT] train_micro_batches.py --out PARAMETERS.npy

Without a parameter server, ranks all-reduce, as RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import evenpace.torch
from tests.worker.torch.process_groups import end_process_group
from worker.own_session import own_session

SAMPLES, BATCH_SIZE, MICRO_BATCH, EPOCHS, SEED = 90, 24, 5, 2, 7


class Augmented(torch.utils.data.Dataset):
    """Random images, moved, flipped and made noisy by numbers of torch, Python and NumPy."""

    def __init__(self, generator=None):
        numbers = torch.Generator().manual_seed(5)
        self.images = torch.randn(SAMPLES, 3, 8, 8, dtype=torch.float64, generator=numbers)
        self.labels = torch.randint(4, (SAMPLES,), generator=numbers)
        self.own = generator

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        image = torch.roll(self.images[index], (random.randint(-1, 1), int(np.random.randint(3))), (1, 2))
        image = image.flip(2) if torch.rand(()) < 0.5 else image
        noise = 0.0 if self.own is None else float(self.own.normal())
        return image + 0.1 * torch.randn_like(image) + noise, self.labels[index]


def make_model(dtype=torch.float64):
    """Return the network, with the same first parameters each time."""
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.2)),
        *(nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8, momentum=None), nn.ReLU(), nn.Flatten()),
        *(nn.Dropout(0.3), nn.Linear(72, 4)),
    ).to(dtype)


def make_optimizer(model):
    """Return the optimiser and its schedule, which goes on once an iteration."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)


def vector(model):
    """Return the model's state in double precision, (elements,)."""
    return torch.cat([t.flatten().double() for t in model.state_dict().values()]).numpy()


def draw():
    """Return a number from each of the generators of torch, Python and NumPy."""
    return [float(torch.rand(())), random.random(), float(np.random.rand())]


def make_loader(options):
    """Return the loader."""
    settings = {"seed": SEED, "micro_batch": MICRO_BATCH, "shuffle": True}
    return evenpace.torch.DataLoader(Augmented(), BATCH_SIZE, num_workers=options.num_workers, **settings)


def main() -> None:
    """Train, and write parameters and running statistics, and what the loop has drawn in each iteration.

    For each batch it draws a scale of the loss, then a weight decay, and once more after the step.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--scaled", action="store_true", help="scale losses by a GradScaler")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dtype = getattr(torch, options.dtype)
    model = make_model(dtype)
    loader = make_loader(options)
    optimizer, schedule = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=options.scaled)
    all_reduce = own_session().exchange.loader_finishes
    if all_reduce:
        distributed.init_process_group("gloo")
        model = evenpace.torch.balance(DistributedDataParallel(model), loader)
    else:
        evenpace.torch.distribute(optimizer, loader, model)
        for _ in range(own_session().join().iteration):  # where it joins late
            schedule.step()
    for _ in range(options.epochs):
        for batch in loader:
            iteration, before = own_session().assignment.iteration, draw()
            optimizer.zero_grad()
            for images, labels in evenpace.torch.micro_batches(batch):
                loss = nn.functional.cross_entropy(model(images.to(dtype)), labels)
                scaler.scale(sum(before) * loss).backward()
            after = draw()
            optimizer.param_groups[0]["weight_decay"] = 0.01 * sum(after)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            with Path(f"{options.out}.drawn").open("a") as drawn:
                print(json.dumps([iteration, before, after, draw()]), file=drawn)
    np.save(options.out, vector(model.module if all_reduce else model))
    if all_reduce:
        del model, optimizer, schedule
        end_process_group()


if __name__ == "__main__":
    main()
