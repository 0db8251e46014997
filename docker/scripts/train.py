"""The script of the workers of docker-compose.yml: it trains a small CNN on images, and prints its progress.

It is an ordinary PyTorch loop with evenpace's three lines.
"""

import argparse
import time

import click
import torch
from torch import nn

import evenpace
from evenpace.lab.data import ImageSet, load
from evenpace.lab.workloads.digits import make_model


def main() -> None:
    """Train for the number of epochs on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="digits", help="digits, mnist:DIR or cifar10:DIR")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=480, help="of the whole batch, over all workers")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    data = load(options.data)
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    dataset = torch.utils.data.TensorDataset(images, labels)
    model = make_model(data)
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    loader = evenpace.torch.DataLoader(dataset, options.batch_size, shuffle=True, seed=1)
    optimizer = evenpace.torch.distribute(optimizer, loader)
    for epoch in loader.epochs(options.epochs):
        begin, sizes = time.monotonic(), []
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = loss_function(model(batch), targets)
            loss.backward()
            optimizer.step()
            sizes.append(len(batch))
        if sizes:
            click.echo(
                f"epoch {epoch + 1} of {options.epochs}: {time.monotonic() - begin:.2f} s, "
                f"my part of the last batches {sizes[-3:]}, loss {loss.item():.3f}"
            )
    click.echo(f"accuracy {_accuracy(model, data):.1%}")


def _accuracy(model: nn.Module, data: ImageSet) -> float:
    with torch.no_grad():
        parts = torch.from_numpy(data.test_images).split(256)
        classes = torch.cat([model(part).argmax(1) for part in parts])
    return (classes == torch.from_numpy(data.test_labels)).double().mean().item()


if __name__ == "__main__":
    main()
