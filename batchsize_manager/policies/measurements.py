"""Measured times of each worker: a few batch sizes, each with its average batch processing time.

Spikes are left out, and distinguished from lasting changes of speed. This module knows nothing of how batches
are split.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from predictors import Array
from predictors.base import reindexed

SIZES_KEPT = 10  # of each worker; a new one replaces the one that was not measured for longest
_SAME_SIZE = 0.03  # relative difference up to which batch sizes are one measurement
_NEAR_SIZE = 0.15  # relative difference up to which an expected time is good enough to show a change
_MOST_REPEATS = 20  # iterations that an average weighs at most, so that it follows slow changes
_AGEING = 2e-5  # relative variance added in each iteration since a size was measured last
_DOUBT = 0.15**2  # relative variance added by a change, which may have bent the curve
_DOUBT_GROWS = 1.5  # factor of that in each iteration
_MOST_DOUBT = 100.0  # measurements of a larger added variance, after some 20 iterations, are forgotten
_LEAST_SURPRISE = 0.22  # log of the time over the expected time; log 3 is 1.1
_LEFT_OUT = 2  # times left out, less half of those taken in since, from which on a change is assumed
_ENOUGH = 2  # batch sizes that determine a curve
_LITTLE = 0.25  # of an even share: a batch size that tells nothing about larger ones
_MOST_NOISE = 0.3
_SETTLED = 5  # iterations taken in since the last change
_SURPRISES = 5.0  # standard deviations of the noise
_UNSEEN_SURPRISE = 0.6  # more for each factor of e between the batch size and the nearest measured one
_FIRST_NOISE, _LEAST_NOISE = 0.04, 0.01  # relative standard deviations
_NOISE_MEMORY = 20  # iterations


class Measurements:
    """Average times at batch sizes, for all workers; arrays are (workers, `SIZES_KEPT`).

    Attributes:
        sizes: Batch sizes in units.
        times: Average batch processing times in seconds.
        repeats: Iterations that the time is an average of, at most `_MOST_REPEATS`; 0 for an empty place.
        noise: Relative standard deviation of one time, (workers,).
        surprise: Log of the last time over the expected one if it was left out as a spike, else NaN;
            (workers,).
        iterations: Iterations taken in since the worker joined or its speed changed, (workers,).
    """

    def __init__(self) -> None:
        self._set(0)

    def _set(self, workers: int) -> None:
        places = (workers, SIZES_KEPT)
        self.sizes = np.ones(places)
        self.times = np.ones(places)
        self.repeats = np.zeros(places)
        self._doubt = np.zeros(places)
        self._age = np.zeros(places)  # iterations
        self.noise = np.full(workers, _FIRST_NOISE)
        self.surprise = np.full(workers, np.nan)
        self._lost = np.zeros(workers, dtype=bool)  # whether much was forgotten, and not measured since
        self._left_out = np.zeros(workers)  # times left out, less half of those taken in since
        self.iterations = np.zeros(workers)

    def reindex(self, rows: Sequence[int | None]) -> None:
        """Move the rows: for each worker from now on, the row that it had, or None for a new one."""
        for name, unknown in (("sizes", 1.0), ("times", 1.0), ("repeats", 0.0), ("_doubt", 0.0)):
            setattr(self, name, reindexed(getattr(self, name), rows, unknown))
        self._age = reindexed(self._age, rows, 0.0)
        self.noise = reindexed(self.noise, rows, _FIRST_NOISE)
        self.surprise = reindexed(self.surprise, rows, np.nan)
        self.iterations = reindexed(self.iterations, rows, 0.0)
        self._left_out = reindexed(self._left_out, rows, 0.0)
        self._lost = reindexed(self._lost, rows, False)

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Mask of the workers with any measurement, (workers,)."""
        return np.asarray(self.repeats.max(axis=1, initial=0.0) > 0)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Mask of the workers whose measurements determine their curve, (workers,).

        They do not where a spike has left only a small batch, since all else was forgotten.
        """
        largest = np.where(self.repeats > 0, self.sizes, 0.0).max(axis=1, initial=0.0)
        return np.asarray(self.seen & ~(self._lost & (largest < _LITTLE * largest.mean())))

    @property
    def latest_sizes(self) -> Array:
        """The batch sizes measured last, (workers,); without any, the others' average, or 1."""
        latest = np.where(self.repeats > 0, -self._age, -np.inf).argmax(axis=1)
        sizes = self.sizes[np.arange(len(latest)), latest]
        seen = self.seen
        return np.where(seen, sizes, sizes[seen].mean() if seen.any() else 1.0)

    @property
    def variances(self) -> Array:
        """Relative variances of the times; infinite for an empty place."""
        with np.errstate(divide="ignore"):
            return self.noise[:, None] ** 2 / self.repeats + _AGEING * self._age + self._doubt

    def restore(self, worker: int, sizes: Array, times: Array) -> None:
        """Fill a worker's row from an earlier run, with added variance, since its speed may have changed.

        Args:
            worker: Its row.
            sizes: Batch sizes in units, at most `SIZES_KEPT`.
            times: Batch processing times in seconds.
        """
        kept = len(sizes)
        self.sizes[worker, :kept], self.times[worker, :kept] = sizes, times
        self.repeats[worker, :kept] = 1.0
        self._doubt[worker, :kept] = _DOUBT

    def add(self, workers: NDArray[np.int64], sizes: Array, times: Array, expected: Array) -> None:
        """Add an iteration of some of the workers.

        A time that is far from the expected one is left out as a spike. If the next one is as far off on the
        same side, or many are, it is taken in, and the variance of all earlier measurements grows until
        they are forgotten. If that happens at a batch size that was measured before, the worker's speed has
        changed, and all its times are scaled by as much; their variance grows all the same, since a lower
        bandwidth adds a constant where a slower GPU multiplies. At a new batch size, the curve was wrong.

        Args:
            workers: Their rows, (reports,).
            sizes: Batch sizes in units, above 0, (reports,).
            times: Batch processing times in seconds, (reports,).
            expected: Times by the curve in seconds, (reports,); ignored for a worker without measurements.
        """
        self._age += 1
        self._doubt[workers] *= _DOUBT_GROWS
        forgotten = self._doubt > _MOST_DOUBT
        self.repeats[forgotten] = self._doubt[forgotten] = 0.0
        self._lost |= forgotten.any(axis=1)
        known = self.repeats[workers] > 0
        # (reports, places)
        away = np.where(known, np.abs(np.log(self.sizes[workers] / sizes[:, None])), np.inf)
        nearest = away.argmin(axis=1)
        distance = away[np.arange(len(workers)), nearest]
        first = ~known.any(axis=1)
        surprise = np.where(first, 0.0, np.log(times / expected))
        usual = np.maximum(_LEAST_SURPRISE, _SURPRISES * self.noise[workers])
        surprised = np.abs(surprise) > usual + _UNSEEN_SURPRISE * np.where(first, 0.0, distance)
        alike = surprised & (surprise * self.surprise[workers] > 0)
        changed = alike | (surprised & (self._left_out[workers] >= _LEFT_OUT))
        # A change soon after another shows that the curve was not scaled by a factor as a whole.
        scaled = alike & (distance < _NEAR_SIZE) & (self.iterations[workers] >= _SETTLED)
        factors = np.where(scaled, np.exp((surprise + self.surprise[workers]) / 2), 1.0)
        self._doubt_all(workers[changed], factors[changed])
        left_out = surprised & ~changed
        self.surprise[workers] = np.where(left_out, surprise, np.nan)
        fewer = np.maximum(0.0, self._left_out[workers] - 0.5) * ~changed
        self._left_out[workers] = np.where(left_out, self._left_out[workers] + 1, fewer)

        calm = ~surprised & ~first & (distance < _SAME_SIZE)
        rows = workers[calm]
        variance = self.noise[rows] ** 2
        variance += (surprise[calm] ** 2 - variance) / _NOISE_MEMORY
        self.noise[rows] = np.clip(np.sqrt(variance), _LEAST_NOISE, _MOST_NOISE)

        taken = ~surprised | changed
        same = distance < _SAME_SIZE
        # An empty place, or that of the size that was not measured for longest.
        oldest = np.where(known, -self._age[workers], -np.inf).argmin(axis=1)
        place = np.where(same, nearest, oldest)
        at = (workers[taken], place[taken])
        # A measurement of larger variance counts for less than the times that it is an average of.
        doubt = self._doubt[workers, place] / self.noise[workers] ** 2
        before = self.repeats[workers, place]
        repeats = np.where(same & ~changed, before / (1 + before * doubt), 0.0)[taken]
        share = 1 / (repeats + 1)
        self.sizes[at] = (
            np.where(repeats > 0, self.sizes[at], sizes[taken]) * (1 - share) + sizes[taken] * share
        )
        self.times[at] = self.times[at] * (1 - share) + times[taken] * share
        self.repeats[at] = np.minimum(repeats + 1, _MOST_REPEATS)
        self._age[at] = 0
        self._doubt[at] = 0.0
        self.iterations[workers[taken]] += 1
        self._lost &= (self.repeats > 0).sum(axis=1) < _ENOUGH

    def _doubt_all(self, workers: NDArray[np.int64], factors: Array) -> None:
        """Scale all measurements of some workers, and let later ones count more."""
        self.times[workers] *= factors[:, None]
        self._doubt[workers] = np.maximum(self._doubt[workers], _DOUBT)
        self.repeats[workers] = np.minimum(self.repeats[workers], 1.0)
        self.iterations[workers] = 0
