"""Gradients of a quadratic loss, whose noise is known, and splits of batches for them.

They are of 50 dimensions or more: the mean over b samples of H(x - a_j), with a_j normal, is the true
gradient plus normal noise with the covariance Σ/b, so that both truths are known.
"""

import math

import numpy as np
from hypothesis import strategies as st

from idl.gradient_norms import GradientNorms

SPLITS = st.lists(st.integers(0, 64), min_size=2, max_size=8).filter(lambda split: sum(map(bool, split)) > 1)
SEEDS = st.integers(0, 2**32 - 1)


class Quadratic:
    """A point of a quadratic loss: its true gradient and the deviation of a sample's, (dimensions,) each."""

    def __init__(self, rng, dimensions, batch, ratio):
        self.rng = rng
        self.deviations = rng.uniform(0.5, 1.5, dimensions)
        self.var = float(np.sum(self.deviations**2))
        self.sqr = self.var / (ratio * batch)  # so that the noise scale is `ratio` batches
        direction = rng.normal(size=dimensions)
        self.gradient = direction * math.sqrt(self.sqr) / np.linalg.norm(direction)

    def draw(self, split):
        """Draw the mean gradient of each contribution, (contributions, dimensions); zeros without samples."""
        counts = np.array(split)[:, None]
        noise = self.rng.normal(size=(len(split), len(self.deviations))) * self.deviations
        return np.where(counts > 0, self.gradient + noise / np.sqrt(np.maximum(counts, 1)), 0.0)


def norms_of(split, gradients):
    """Return the norms of contributions, (contributions, dimensions), and of their weighted sum."""
    whole = np.asarray(split) @ gradients / sum(split)
    return GradientNorms.of(
        zip(split, np.sum(gradients**2, axis=1).tolist(), strict=True), float(whole @ whole)
    )


def isotropic_norms(rng, split, dimensions, sqr, var):
    """Draw the norms of an iteration whose Σ is var/d times the identity, without drawing its gradients.

    The spread between contributions is a chi-squared number, independent of the weighted sum, whose part
    along G is normal and whose other parts are chi-squared together.
    """
    total, each = sum(split), var / dimensions
    spread = each * rng.chisquare(dimensions * (len(split) - 1))
    along = math.sqrt(sqr) + rng.normal() * math.sqrt(each / total)
    squared = along**2 + each / total * rng.chisquare(dimensions - 1)
    return GradientNorms(len(split), total, spread + total * squared, squared)
