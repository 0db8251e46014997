"""The script that each worker of the demo runs: an ordinary PyTorch loop with evenpace's three lines."""

import argparse

import torch
from torch import nn

import evenpace
from evenpace.lab.data import load
from evenpace.lab.demo.model import make_model


def main() -> None:
    """Train for the epochs that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    data = load(options.data)
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    dataset = torch.utils.data.TensorDataset(images, labels)
    model = make_model(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()

    # What the framework prepares at its first pass must not be paid for under the CPU limit.
    loss_function(model(images[:256]), labels[:256]).backward()
    optimizer.zero_grad()

    loader = evenpace.torch.DataLoader(dataset, options.batch_size, shuffle=True, seed=options.seed)
    optimizer = evenpace.torch.distribute(optimizer, loader)
    for _ in range(options.epochs):
        for batch, targets in loader:
            optimizer.zero_grad()
            loss_function(model(batch), targets).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
