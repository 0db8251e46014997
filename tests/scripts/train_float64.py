"""A worker's script: trains a small float64 network, and writes its final parameters and batch sizes.

It may stop in the middle with a checkpoint, and go on from one.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

import evenpace

SAMPLES, FEATURES, CLASSES, BATCH, SEED = 500, 20, 5, 64, 7


def make_data():
    """A fixed classification task: (samples, features) and (samples,)."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(SAMPLES, FEATURES))
    labels = (inputs @ generator.normal(size=(FEATURES, CLASSES))).argmax(1)
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def make_model():
    """The same first parameters every time."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, CLASSES)).double()


def make_optimizer(name, model):
    """Two parameter groups, with options of their own."""
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.02}]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-3)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=0.01, amsgrad=True)
    return torch.optim.Adam(groups, lr=0.01, weight_decay=1e-3)


def parts(model, optimizer, scheduler, loader):
    """What a checkpoint has the states of."""
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--stop-at", type=int, default=-1, help="iteration before which to save and end")
    parser.add_argument("--save", type=Path, help="the checkpoint that is written then")
    parser.add_argument("--resume", type=Path, help="the checkpoint to go on from")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model()
    optimizer = make_optimizer(options.optimizer, model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    dataset = torch.utils.data.TensorDataset(*make_data())
    loader = evenpace.torch.DataLoader(
        dataset, BATCH, shuffle=True, seed=SEED, num_workers=options.num_workers
    )
    first_epoch = 0
    if options.resume is not None:
        saved = torch.load(options.resume)
        for name, part in parts(model, optimizer, scheduler, loader).items():
            part.load_state_dict(saved[name])
        first_epoch = saved["epoch"]
    optimizer = evenpace.torch.distribute(optimizer, loader)
    sizes = []
    for epoch in range(options.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            sizes.append(len(labels))
            if loader.session.assignment.iteration == options.stop_at:
                if options.save is not None:
                    saved = parts(model, optimizer, scheduler, loader)
                    saved = {name: part.state_dict() for name, part in saved.items()}
                    torch.save({"epoch": epoch, **saved}, options.save)
                return
        if epoch >= first_epoch:  # the loader passes over those that are done
            scheduler.step()
    if options.out is not None:
        parameters = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
        np.save(options.out, parameters)
        options.out.with_suffix(".json").write_text(json.dumps(sizes))


if __name__ == "__main__":
    main()
