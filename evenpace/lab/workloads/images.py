"""CifarNet and ResNet-32 on CIFAR-10, or on images of its shape.

Both train by SGD with momentum at a constant learning rate, without the sources' crops and flips, so that the
samples of an iteration and their pixels depend on the seed alone.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

from evenpace.lab.data import DataError, ImageSet, load
from evenpace.lab.models.cifarnet import CifarNet
from evenpace.lab.models.resnet import ResNet32
from evenpace.lab.workloads import common, generated

_MOMENTUM = 0.9


def train_cifarnet() -> None:
    """Run `examples/train_cifarnet.py`."""
    common.run(cifarnet_parser(), make_cifarnet)


def train_resnet32() -> None:
    """Run `examples/train_resnet32.py`."""
    common.run(resnet32_parser(), make_resnet32)


def cifarnet_parser() -> argparse.ArgumentParser:
    """Make the parser of CifarNet's options."""
    return _parser("CifarNet, a small CNN, on CIFAR-10.", lr=0.01)


def resnet32_parser() -> argparse.ArgumentParser:
    """Make the parser of ResNet-32's options."""
    options = _parser("ResNet-32 on CIFAR-10.", lr=0.1)
    options.add_argument(
        "--norm",
        choices=["batch", "group"],
        default="batch",
        help="normalisation: batch as in the paper, where the result depends a little on how batches are "
        "split over workers, or group, where it does not (default: %(default)s)",
    )
    return options


def make_cifarnet(options: argparse.Namespace) -> common.Workload:
    """Make CifarNet on the data that the options name.

    Raises:
        DataError: The data cannot be read.
    """
    data = _load(options.data)
    torch.manual_seed(options.seed)
    return image_workload("cifarnet", data, CifarNet(data.classes), options)


def make_resnet32(options: argparse.Namespace) -> common.Workload:
    """Make ResNet-32 on the data that the options name.

    Raises:
        DataError: The data cannot be read.
    """
    data = _load(options.data)
    torch.manual_seed(options.seed)
    return image_workload(
        f"resnet32 ({options.norm} norm)", data, ResNet32(data.classes, options.norm), options
    )


def _parser(description: str, lr: float) -> argparse.ArgumentParser:
    return common.options_parser(
        description,
        data="generated (a pattern for each class, in noise), or cifar10:DIR (CIFAR-10's binary version)",
        epochs=5,
        batch_size=128,
        lr=lr,
        weight_decay=1e-4,
    )


def _load(spec: str) -> ImageSet:
    if spec == "generated":
        return generated.images()
    if not spec.startswith("cifar10:"):
        raise DataError(f"Unknown data {spec!r}: expected generated or cifar10:DIR.")
    return load(spec)


def image_workload(
    name: str, data: ImageSet, model: nn.Module, options: argparse.Namespace
) -> common.Workload:
    """Make the workload of a network that classifies images, trained by SGD with momentum as the options say.

    Raises:
        DataError: There are fewer images than the options ask for.
    """
    train = TensorDataset(torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels))
    test = TensorDataset(torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels))
    train_set = common.first_samples(train, options.samples, "--samples")
    return common.Workload(
        name=name,
        data=f"{options.data}: {len(train_set)} images",
        train_set=train_set,
        test_set=common.first_samples(test, options.test_samples, "--test-samples"),
        model=model,
        loss=nn.functional.cross_entropy,
        predict=lambda logits: logits.argmax(-1),
        optimizer=torch.optim.SGD(
            model.parameters(), lr=options.lr, momentum=_MOMENTUM, weight_decay=options.weight_decay
        ),
    )
