"""CifarNet: the small CNN for CIFAR-10 after Krizhevsky's cuda-convnet.

Source: `research/slim/nets/cifarnet.py` of TensorFlow's model garden, which gave the network its name, with
its first parameters. Its dropout, of half of the units, is off by default: without micro-batches workers draw
different units, so that how a batch is split matters. Local response normalisation looks at one sample at a
time and is harmless.
"""

import torch
from torch import nn

_IMAGE_SIZE = 32  # pixels, both ways


class CifarNet(nn.Sequential):
    """CNN of five layers: images (samples, 3, 32, 32) to logits (samples, classes).

    Args:
        dropout: Probability with which each unit of the first dense layer is dropped.
    """

    def __init__(self, classes: int = 10, dropout: float = 0.0) -> None:
        # TensorFlow's radius of 4 is a window of 9 channels; PyTorch divides alpha by it itself.
        super().__init__(
            nn.Conv2d(3, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(),
            nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (_IMAGE_SIZE // 4) ** 2, 384),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, classes),
        )
        with torch.no_grad():
            for layer in self:
                if isinstance(layer, nn.Conv2d):
                    _truncated_normal(layer, deviation=0.05, bias=0.0)
                elif isinstance(layer, nn.Linear):
                    last = layer.out_features == classes
                    _truncated_normal(layer, 1 / 192 if last else 0.04, bias=0.0 if last else 0.1)


def _truncated_normal(layer: nn.Conv2d | nn.Linear, deviation: float, bias: float) -> None:
    nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    assert layer.bias is not None
    layer.bias.fill_(bias)
