"""ResNet-32 for CIFAR-10.

Source: He, Zhang, Ren and Sun, *Deep Residual Learning for Image Recognition* (CVPR 2016), section 4.2, with
n = 5 and the shortcuts without parameters (option A).

Batch normalisation, as the paper has it, normalises by the statistics of the samples that are computed
together. Without micro-batches these are a worker's in the iteration: a run depends on how its batches are
split, and each worker keeps running means of its own for evaluation. Group normalisation (Wu and He,
ECCV 2018) looks at one sample at a time: with it, an even and a balanced run are the same but for rounding.
"""

from typing import Literal

import torch
from torch import nn

Norm = Literal["batch", "group"]

_GROUPS = 8  # groups of channels, for group normalisation


class ResNet32(nn.Module):
    """Network of 32 layers with weights; images (samples, 3, height, width) in, (samples, classes) out.

    Args:
        norm: The normalisation after each convolution.
        dropout: Probability with which each of the classifier's inputs is dropped; 0 in the paper.
    """

    def __init__(self, classes: int = 10, norm: Norm = "batch", dropout: float = 0.0) -> None:
        super().__init__()
        blocks: list[nn.Module] = [_convolution(3, 16, 1), _normalisation(norm, 16), nn.ReLU()]
        for before, channels, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
            blocks.append(_Block(before, channels, stride, norm))
            blocks += [_Block(channels, channels, 1, norm) for _ in range(4)]
        self.features = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return each class's logit, (samples, classes)."""
        logits: torch.Tensor = self.classifier(self.dropout(self.features(images)))
        return logits


class _Block(nn.Module):
    """Two convolutions, and a shortcut past them."""

    def __init__(self, before: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(before, channels, stride),
            _normalisation(norm, channels),
            nn.ReLU(),
            _convolution(channels, channels, 1),
            _normalisation(norm, channels),
        )
        self.stride = stride
        self.added = channels - before

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        shortcut = inputs
        if self.added:
            # Option A: every other pixel, and zeros for the new channels.
            shortcut = inputs[:, :, :: self.stride, :: self.stride]
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, 0, self.added))
        return nn.functional.relu(self.residual(inputs) + shortcut)


def _convolution(before: int, channels: int, stride: int) -> nn.Conv2d:
    layer = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _normalisation(norm: Norm, channels: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(_GROUPS, channels)
    raise ValueError(f"norm {norm!r}: must be 'batch' or 'group'")
