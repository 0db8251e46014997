"""What is trained: ResNet-32, ResNet-50 and a small transformer, with made-up data of the usual shapes.

ResNet-50 is that of He, Zhang, Ren and Sun, *Deep Residual Learning for Image Recognition* (CVPR 2016),
table 1, with the stride in the 3x3 convolution, as PyTorch's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from lab.models.resnet import ResNet32
from lab.models.transformer import ByteTransformer


class ResNet50(nn.Sequential):
    """Images (samples, 3, height, width) in, (samples, classes) out."""

    def __init__(self, classes: int = 1000) -> None:
        blocks: list[nn.Module] = []
        before = 64
        for channels, repeats, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(repeats):
                blocks.append(_Bottleneck(before, channels, stride if i == 0 else 1))
                before = 4 * channels
        super().__init__(
            *_convolution(3, 64, 7, 2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(before, classes),
        )


class _Bottleneck(nn.Module):
    """Three convolutions, the middle one narrow, and a shortcut past them."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_convolution(before, channels, 1, 1),
            nn.ReLU(inplace=True),
            *_convolution(channels, channels, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(channels, 4 * channels, 1, 1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != 4 * channels:
            self.shortcut = nn.Sequential(*_convolution(before, 4 * channels, 1, stride))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.residual(inputs) + self.shortcut(inputs))


def _convolution(before: int, channels: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(before, channels, size, stride, padding=size // 2, bias=False)
    return convolution, nn.BatchNorm2d(channels)


@dataclass(frozen=True)
class Workload:
    """A model, and how to make a batch for it."""

    make: Callable[[], nn.Module]  # gives a new model, on the CPU
    # Gives inputs and classes of so many samples on a device.
    batch: Callable[[int, torch.device], tuple[torch.Tensor, torch.Tensor]]

    def step(self, device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], None]:
        """One iteration of training a new model: forward, backward, and the optimiser's step."""
        model = self.make().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def step(inputs: torch.Tensor, classes: torch.Tensor) -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs).flatten(0, -2), classes.flatten()).backward()
            optimizer.step()

        return step


def _images(size: int, classes: int) -> Callable[[int, torch.device], tuple[torch.Tensor, torch.Tensor]]:
    def batch(samples: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(samples, 3, size, size, device=device)
        return images, torch.randint(classes, (samples,), device=device)

    return batch


def _texts(length: int) -> Callable[[int, torch.device], tuple[torch.Tensor, torch.Tensor]]:
    def batch(samples: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        text = torch.randint(256, (samples, length + 1), device=device)
        return text[:, :-1], text[:, 1:]

    return batch


def workloads(quick: bool) -> dict[str, Workload]:
    """By name; quick ones have smaller inputs."""
    length, width = (16, 32) if quick else (128, 256)
    return {
        "resnet32": Workload(ResNet32, _images(32, 10)),
        "resnet50": Workload(ResNet50, _images(32 if quick else 224, 1000)),
        "transformer": Workload(lambda: ByteTransformer(length, width, 2 if quick else 4, 4), _texts(length)),
    }
