"""Train a small model on sequences of unlike lengths, with one of several losses and weights."""

import argparse

import torch
from torch import nn

import evenpace.torch
from tests.worker.tokens import (
    IGNORED,
    losses_of,
    make_loader,
    make_model,
    make_optimizer,
    ordinary_loss,
    tokens_in,
)


def each_sample(model, inputs, targets):
    """The mean over samples of each one's mean over its tokens."""
    losses = losses_of(model, inputs, targets)
    return (losses.sum(1) / (targets != IGNORED).sum(1).clamp(min=1)).mean()


def contrastive(model, inputs, targets):
    """A loss that compares each sample with all others."""
    features = model(inputs).mean(dim=1)
    return nn.functional.cross_entropy(features @ features.T, torch.arange(len(features)))


LOSSES = {
    "tokens": ordinary_loss,
    "samples": each_sample,
    "sum": lambda *arguments: losses_of(*arguments).sum(),
    "contrastive": contrastive,
    "padded": lambda *arguments: losses_of(*arguments).mean(),
}
WEIGHTS = {
    "none": None,
    "tokens": tokens_in,
    "unshifted": lambda batch: (batch[1] != IGNORED).sum() + len(batch[1]),
    "padding": lambda batch: batch[1].numel(),
}


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--loss", choices=LOSSES, default="tokens")
    parser.add_argument("--weight", choices=WEIGHTS, default="none")
    parser.add_argument("--dropout", choices=("layer", "function"))
    parser.add_argument("--ddp", action="store_true")
    arguments = parser.parse_args()
    model = make_model()
    if arguments.dropout == "layer":
        model.insert(3, nn.Dropout(0.5))
    if arguments.dropout == "function":
        model[2].register_forward_hook(lambda module, inputs, output: nn.functional.dropout(output, 0.5))
    optimizer = make_optimizer(model)
    loader = make_loader(weight=WEIGHTS[arguments.weight])
    if arguments.ddp:
        torch.distributed.init_process_group("gloo")
        model = evenpace.torch.balance(nn.parallel.DistributedDataParallel(model), loader, optimizer)
    else:
        evenpace.torch.distribute(optimizer, loader, model)
    for inputs, targets in loader:
        model.train()
        optimizer.zero_grad()
        LOSSES[arguments.loss](model, inputs, targets).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
