"""Small network of the demo on handwritten digits: real data without any files, and quick to train."""

import argparse
import functools
import itertools
from collections.abc import Sequence

import torch
from torch import nn

from lab.data import ImageSet, load
from lab.fields import whole_numbers
from lab.workloads import common
from lab.workloads.images import image_workload

_WIDTH_TIMES_PIXELS = 8192  # keeps large images from taking much longer than small ones


def parser() -> argparse.ArgumentParser:
    """Make the parser of the workload's options."""
    options = common.options_parser(
        "The demo's small CNN on handwritten digits.",
        data="digits (scikit-learn's), mnist:DIR (IDX files) or cifar10:DIR (CIFAR-10's binary version)",
        epochs=20,
        batch_size=256,
        lr=0.1,
        weight_decay=0.0,
    )
    options.add_argument(
        "--batch-norm", action="store_true", help="batch normalisation after the first two convolutions"
    )
    options.add_argument(
        "--hidden",
        type=_units,
        default=(),
        metavar="UNITS,...",
        help="units of further layers before the last one",
    )
    common.add_network_options(options)
    return options


def _units(text: str) -> tuple[int, ...]:
    """Read the units of layers, with commas between them; an empty text is that of none."""
    try:
        return whole_numbers("hidden", text, least=1) if text else ()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def make_digits(options: argparse.Namespace) -> common.Workload:
    """Make the network on the data that the options name (DataError: the data cannot be read)."""
    data = load(options.data)
    torch.manual_seed(options.seed)
    model = make_model(data, options.dropout, batch_norm=options.batch_norm, hidden=options.hidden)
    return image_workload("digits", data, model, options)


def make_model(
    data: ImageSet, dropout: float = 0.0, *, batch_norm: bool = False, hidden: Sequence[int] = ()
) -> nn.Module:
    """Make a CNN of three convolutions for images of the data set's shape; the caller sets the seed.

    By default it has no batch statistics and no dropout, so that how a batch is split cannot matter. It is
    smooth, for with ReLU or max-pooling, training itself blows rounding errors up a thousandfold within a few
    epochs. Inputs of the last layer are dropped, the first two convolutions followed by batch normalisation,
    and hidden units those of further linear layers before the last one.
    """
    channels, height, width = data.train_images.shape[1:]
    features = min(128, max(16, _WIDTH_TIMES_PIXELS // (height * width)))
    norm = functools.partial(nn.BatchNorm2d, features) if batch_norm else nn.Identity
    sizes = [features * 16, *hidden]
    further = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.Tanh())]
    return nn.Sequential(
        nn.Conv2d(channels, features, 3, padding=1),
        norm(),
        nn.Tanh(),
        nn.Conv2d(features, features, 3, padding=1),
        norm(),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(features, features, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        *further,
        nn.Dropout(dropout),
        nn.Linear(sizes[-1], data.classes),
    )
