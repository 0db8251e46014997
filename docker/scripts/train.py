"""The script of the workers of docker-compose.yml: it trains a small CNN on images, and prints its progress.

It is an ordinary PyTorch loop with evenpace's three lines, and needs nothing but what the images have.
"""

import argparse
import math
import time
from pathlib import Path

import click
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import evenpace


def main() -> None:
    """Train for the number of epochs on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--data", default="digits", help="digits, or mnist:DIR with MNIST's four unpacked files"
    )
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=480, help="of the whole batch, over all workers")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    images, labels, test_images, test_labels = read(options.data)
    dataset = torch.utils.data.TensorDataset(images, labels)
    model = make_model(classes=int(labels.max()) + 1)
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
    with torch.no_grad():
        classes = torch.cat([model(part).argmax(1) for part in test_images.split(256)])
    click.echo(f"accuracy {(classes == test_labels).double().mean():.1%}")


def make_model(classes: int) -> nn.Module:
    """Make a CNN for images of one channel and any size; smooth, so that rounding errors stay small."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 16, classes),
    )


def read(data: str) -> list[torch.Tensor]:
    """Return images (samples, 1, height, width) and labels for training, and the same for the test."""
    name, _, folder = data.partition(":")
    if data == "digits":
        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        images, labels = digits.images[order] / 16, digits.target[order]
        arrays = [images[360:], labels[360:], images[:360], labels[:360]]
    elif name == "mnist" and folder:
        files = [
            Path(folder, f"{part}-{kind}-ubyte")
            for part in ("train", "t10k")
            for kind in ("images-idx3", "labels-idx1")
        ]
        arrays = [read_idx(path) for path in files]
        arrays = [array / 255 if array.ndim == 3 else array for array in arrays]
    else:
        raise SystemExit(f"--data {data!r}: give digits, or mnist:DIR")
    return [
        torch.from_numpy(
            array[:, np.newaxis].astype(np.float32) if array.ndim == 3 else array.astype(np.int64)
        )
        for array in arrays
    ]


def read_idx(path: Path) -> np.ndarray:
    """Return the unsigned bytes of an IDX file, in the shape that its header gives."""
    if not path.is_file():
        raise SystemExit(f"{path}: no such file")
    content = path.read_bytes()
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, 4).astype(int)
    return np.frombuffer(content, np.uint8, math.prod(shape), 4 + 4 * dimensions).reshape(shape)


if __name__ == "__main__":
    main()
