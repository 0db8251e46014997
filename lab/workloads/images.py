"""CifarNet and ResNet-32 on CIFAR-10, or on images of its shape.

Both train by SGD with momentum at a constant learning rate, and without the sources' crops and flips unless
`--augment` is given: without micro-batches these depend on the worker that loads an image.
"""

import argparse
from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from lab.data import DataError, ImageSet, load
from lab.models.cifarnet import CifarNet
from lab.models.resnet import ResNet32
from lab.workloads import common, generated
from worker.torch.loader import MapStyleDataset

_MOMENTUM = 0.9
_PADDING = 4  # pixels at each edge, for random crops


class Augmented(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images, (channels, height, width), cropped and flipped at random, as in ResNet's section 4.2."""

    def __init__(self, images: MapStyleDataset) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = self._images[index]
        _, height, width = image.shape
        padded = nn.functional.pad(image, (_PADDING,) * 4)
        top, left = torch.randint(2 * _PADDING + 1, (2,)).tolist()
        cropped = padded[:, top : top + height, left : left + width]
        return cropped.flip(2) if torch.rand(()) < 0.5 else cropped, label


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
        "split over workers without --micro-batch, or group, where it does not (default: %(default)s)",
    )
    options.add_argument("--augment", action="store_true", help="crop and flip images at random")
    return options


def make_cifarnet(options: argparse.Namespace) -> common.Workload:
    """Make CifarNet on the data that the options name (DataError: the data cannot be read)."""
    data = _load(options.data)
    torch.manual_seed(options.seed)
    return image_workload("cifarnet", data, CifarNet(data.classes, options.dropout), options)


def make_resnet32(options: argparse.Namespace) -> common.Workload:
    """Make ResNet-32 on the data that the options name (DataError: the data cannot be read)."""
    data = _load(options.data)
    torch.manual_seed(options.seed)
    model = ResNet32(data.classes, options.norm, options.dropout)
    workload = image_workload(f"resnet32 ({options.norm} norm)", data, model, options)
    return replace(workload, train_set=Augmented(workload.train_set)) if options.augment else workload


def _parser(description: str, lr: float) -> argparse.ArgumentParser:
    options = common.options_parser(
        description,
        data="generated (a pattern for each class, in noise), or cifar10:DIR (CIFAR-10's binary version)",
        epochs=5,
        batch_size=128,
        lr=lr,
        weight_decay=1e-4,
    )
    common.add_network_options(options)
    return options


def _load(spec: str) -> ImageSet:
    if spec == "generated":
        return generated.images()
    if not spec.startswith("cifar10:"):
        raise DataError(f"Unknown data {spec!r}: expected generated or cifar10:DIR.")
    return load(spec)


def image_workload(
    name: str, data: ImageSet, model: nn.Module, options: argparse.Namespace
) -> common.Workload:
    """Make the workload of a network that classifies images, trained by SGD with momentum."""
    dtype = common.dtype_of(options)
    train, test = (
        TensorDataset(torch.from_numpy(images).to(dtype), torch.from_numpy(labels))
        for images, labels in ((data.train_images, data.train_labels), (data.test_images, data.test_labels))
    )
    train_set = common.first_samples(train, options.samples, "--samples")
    return common.Workload(
        name=name,
        data=f"{options.data}: {len(train_set)} images",
        train_set=train_set,
        test_set=common.first_samples(test, options.test_samples, "--test-samples"),
        model=model.to(dtype),
        loss=nn.functional.cross_entropy,
        predict=lambda logits: logits.argmax(-1),
        optimizer=torch.optim.SGD(
            model.parameters(), lr=options.lr, momentum=_MOMENTUM, weight_decay=options.weight_decay
        ),
    )
