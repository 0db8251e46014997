"""The law of work by batch size, its fit, and its predictions of sizes that were left out of the fit.

With batches of B samples a training needs the work W = W0 (1 + B/B_c) to its target: samples, or passes over
the data. Of two batches of M0 and M samples that is eq. 6 of Pollux, W(M0) / W(M) = (φ + M0) / (φ + M), with
B_c in place of the noise scale φ, which stands for a whole training then. This module must not know where the
points are from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

FEWEST = 3
"""Sizes from which a law can be judged: two are fitted exactly, whatever they are."""

_MISFIT = 0.05  # relative error that the law has anyway: a size with many runs outweighs others no further
_CERTAIN = 3.0  # standard errors beyond which a difference of two sizes is not chance
_WILD = 0.5  # standard deviation of a size's runs, relative to their mean, that is worth a remark


@dataclass(frozen=True)
class Point:
    """Trainings with batches of one size."""

    size: int  # samples of a batch, from 1
    runs: int  # how many trainings, from 1
    work: float  # their mean work to the target, above 0
    deviation: float  # its standard deviation over the runs

    @property
    def error(self) -> float:
        """Return the relative standard error of the mean."""
        return self.deviation / math.sqrt(self.runs) / self.work


@dataclass(frozen=True)
class Law:
    """The law W = work + slope B; neither is below 0, and one is above it."""

    work: float  # W0, of very small batches; 0 where work is in proportion to the batch
    slope: float  # W0 / B_c, work for each more sample of a batch; 0 where the size makes no difference
    work_error: float  # standard error of W0
    slope_error: float  # standard error of the slope

    @property
    def critical(self) -> float:
        """Return B_c, at which the work is twice W0: 0 or infinity where a parameter is at its bound."""
        return self.work / self.slope if self.slope > 0 else math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """Return bounds of B_c, from 0 to infinity, with two standard errors of both parameters.

        Where W0 is larger the slope is smaller: the largest of one goes with the smallest of the other.
        """
        work, slope = 2 * self.work_error, 2 * self.slope_error
        most = (self.work + work) / (self.slope - slope) if self.slope > slope else math.inf
        return max(self.work - work, 0.0) / (self.slope + slope), most

    def at(self, size: int) -> float:
        """Return the work to the target with batches of this size."""
        return self.work + self.slope * size


def fit(points: Sequence[Point]) -> Law:
    """Fit the law by least squares of relative errors (ValueError: there are fewer than two sizes).

    The weight of a size is 1 / (0.05² + its squared standard error). The law is taken to be no better than
    5%: runs that are looked at once an epoch may all end at the same one, and would count as exact. The
    parameters' standard errors are those that errors of this size leave.
    """
    sizes = np.array([point.size for point in points], float)
    if len(set(sizes.tolist())) < 2:
        raise ValueError(f"points of {len(set(sizes.tolist()))} sizes: a law takes at least two")
    works = np.array([point.work for point in points])
    weights = 1 / np.hypot(_MISFIT, [point.error for point in points])
    unit = sizes.max()  # of B, so that both columns are of the same order
    columns = np.stack((np.ones_like(sizes), sizes / unit), axis=1) * (weights / works)[:, None]
    inverse = np.linalg.pinv(columns)
    found, errors = inverse @ weights, np.sqrt((inverse**2).sum(axis=1))
    if found.min() < 0:  # the best with one of them at 0
        alone = columns.T @ weights / (columns**2).sum(axis=0)
        best = int(np.argmax(alone * (columns.T @ weights)))  # what it takes off the sum of squares
        found = np.where(np.arange(2) == best, alone, 0.0)
    return Law(*(found / [1, unit]).tolist(), *(errors / [1, unit]).tolist())


def fit_without_each(points: Sequence[Point]) -> list[Law]:
    """Fit a law to all points but the first, to all but the second, and so on."""
    return [fit([*points[:place], *points[place + 1 :]]) for place in range(len(points))]


def nearest(points: Sequence[Point]) -> list[float]:
    """Predict each size's work without a law: it is that of the other size that is nearest by ratio."""
    return [
        min(
            (other for other in points if other.size != point.size),
            key=lambda other: abs(math.log(other.size / point.size)),
        ).work
        for point in points
    ]


def contradictions(points: Sequence[Point]) -> list[str]:
    """Return what in points, by ascending size, no such law allows or makes them incomparable, in words.

    Work that falls as batches grow, and work that grows faster than batches, by more than three standard
    errors; and runs of a size that differ among themselves by half of their mean.
    """
    found = [
        f"runs with {point.size:,} differ by {point.deviation / point.work:.0%}"
        for point in points
        if point.deviation > _WILD * point.work
    ]
    for low, high in pairwise(points):
        ratio, error = high.work / low.work, math.hypot(low.error, high.error)
        if ratio * (1 + _CERTAIN * error) < 1:
            found.append(f"{low.size:,} to {high.size:,}: work ×{ratio:.2f}")
        if ratio * (1 - _CERTAIN * error) > high.size / low.size:
            found.append(
                f"{low.size:,} to {high.size:,}: work ×{ratio:.2f}, batch ×{high.size / low.size:.2f}"
            )
    return found
