"""Generated data of the workloads' shapes, the same each time, for users without files.

It is for trying things out and for measuring times; a model's accuracy on it says nothing about real data.
"""

import numpy as np

from lab.data import CIFAR10_CLASSES, CIFAR10_SHAPE, ImageSet, SparseSet

_SEED = 0

_IMAGES = (2_000, 500)  # training and test samples
_PATCH = 8  # pixels, both ways
_SPARSE = (20_000, 4_000)
_FEATURES = 4_000
_PER_SAMPLE = 60  # features that are drawn, on average
_FLATTENED = 100  # ranks, Mandelbrot's term in the law, without which features would be in every sample
_NOISE = 0.3  # standard deviation of the noise, against margins of unit variance


def images() -> ImageSet:
    """Make images of CIFAR-10's shape and classes: a pattern of coloured patches for each class, in noise."""
    generator = np.random.default_rng(_SEED)
    train, test = _IMAGES
    channels, height, width = CIFAR10_SHAPE
    patches = generator.normal(size=(CIFAR10_CLASSES, channels, height // _PATCH, width // _PATCH))
    patterns = patches.repeat(_PATCH, axis=2).repeat(_PATCH, axis=3)
    labels = generator.integers(CIFAR10_CLASSES, size=train + test)
    pixels = generator.normal(size=(train + test, *CIFAR10_SHAPE))
    pixels += patterns[labels]
    normalised = (pixels / np.sqrt(2)).astype(np.float32)  # to unit variance, as `ImageSet` has it
    return ImageSet("generated", normalised[:train], labels[:train], normalised[train:], labels[train:])


def sparse() -> tuple[SparseSet, SparseSet]:
    """Make training and test samples with binary features, like the words of URLs.

    The features' frequencies follow the law of Zipf and Mandelbrot. The labels are those of a random linear
    model, with noise.
    """
    generator = np.random.default_rng(_SEED)
    train, test = _SPARSE
    samples = train + test
    lengths = 1 + generator.poisson(_PER_SAMPLE, samples)
    frequencies = 1 / (_FLATTENED + np.arange(1, _FEATURES + 1))
    drawn = generator.choice(_FEATURES, lengths.sum(), p=frequencies / frequencies.sum())
    # Samples' features in order, each once: `cells` are positions in the matrix, row by row.
    cells = np.unique(np.repeat(np.arange(samples), lengths) * _FEATURES + drawn)
    rows, columns = np.divmod(cells, _FEATURES)
    offsets = np.searchsorted(rows, np.arange(samples + 1))
    weights = generator.normal(size=_FEATURES)
    margins = np.add.reduceat(weights[columns], offsets[:-1])  # no sample is empty
    margins = (margins - margins.mean()) / margins.std()
    noisy = margins + _NOISE * generator.normal(size=samples)
    labels = np.where(noisy > 0, 1, -1).astype(np.float32)
    whole = SparseSet(columns, np.ones(len(columns), np.float32), offsets, labels, _FEATURES)
    return whole.rows(np.arange(train)), whole.rows(np.arange(train, samples))
