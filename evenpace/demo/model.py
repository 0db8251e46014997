"""The demo's model: a small CNN.

It has no batch statistics and no dropout, so that how a batch is split cannot matter; and it is smooth, for
with ReLU or max-pooling, training itself blows rounding errors up a thousandfold within a few epochs.
"""

from torch import nn

from evenpace.data import ImageSet

_WIDTH_TIMES_SIDE = 1024  # keeps an iteration's work about the same for small and large images


def make_model(data: ImageSet) -> nn.Module:
    """A CNN of three convolutions for images of the data set's shape; the seed is the caller's business."""
    channels, height, _ = data.train_images.shape[1:]
    width = min(128, max(16, _WIDTH_TIMES_SIDE // height // 4 * 4))
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(width, width, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(width * 16, data.classes),
    )
