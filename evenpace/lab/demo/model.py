"""The demo's model: a small CNN.

It has no batch statistics and no dropout, so that how a batch is split cannot matter; and it is smooth, for
with ReLU or max-pooling, training itself blows rounding errors up a thousandfold within a few epochs.
"""

from torch import nn

from evenpace.lab.data import ImageSet

_WIDTH_TIMES_PIXELS = 8192  # keeps large images from taking much longer than small ones


def make_model(data: ImageSet) -> nn.Module:
    """A CNN of three convolutions for images of the data set's shape; the seed is the caller's business."""
    channels, height, width = data.train_images.shape[1:]
    features = min(128, max(16, _WIDTH_TIMES_PIXELS // (height * width)))
    return nn.Sequential(
        nn.Conv2d(channels, features, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(features, features, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(features, features, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(features * 16, data.classes),
    )
