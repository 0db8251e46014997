"""What has been seen of each worker's times: a few batch sizes with their average time.

Spikes are kept out, and a lasting change of speed is told from them. It knows nothing of how batches are
split.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from predictors import Array
from predictors.base import reindexed

SIZES_KEPT = 10  # of each worker; the one not seen for longest makes room
_SAME_SIZE = 0.03  # relative; batch sizes that close to each other are one sighting
_NEAR_SIZE = 0.15  # relative; so near to a sighting, its time is known well enough to tell a change
_MOST_REPEATS = 20  # an average follows slow changes within so many iterations
_AGEING = 2e-5  # relative variance for each iteration since a size was seen last
_DOUBT = 0.15**2  # relative variance: how much a change may have bent a curve
_DOUBT_GROWS = 1.5  # in each iteration
_MOST_DOUBT = 100.0  # what is doubted more, after some 20 iterations, is forgotten
_LEAST_SURPRISE = 0.22  # log of the time over what was expected; three times as long has 1.1
_LEFT_OUT = 2  # more than half as many as were taken in of late
_ENOUGH = 2  # batch sizes that tell a curve
_LITTLE = 0.25  # of an even share: a batch size that says nothing of larger ones
_MOST_NOISE = 0.3
_SETTLED = 5  # iterations that are taken in without another change
_SURPRISES = 5.0  # deviations of the noise
_UNSEEN_SURPRISE = 0.6  # more for each factor of e that the batch size lies from all that were seen
_FIRST_NOISE, _LEAST_NOISE = 0.04, 0.01  # relative standard deviations
_NOISE_MEMORY = 20  # iterations


class Sightings:
    """Average times at batch sizes, for all workers; arrays are (workers, `SIZES_KEPT`).

    Attributes:
        sizes: Samples.
        times: Seconds.
        repeats: Iterations that the time is an average of, at most `_MOST_REPEATS`; 0 for an empty place.
        noise: (workers,), relative standard deviation of one time.
        surprise: (workers,), log of how much longer than expected the last time was if it was left out
            because of that; NaN if it was not.
        iterations: (workers,), how many have been taken in since the worker came or changed.
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
        self._lost = np.zeros(workers, dtype=bool)  # whether much was forgotten, and not seen anew
        self._left_out = np.zeros(workers)  # times, less half of those that were taken in since
        self.iterations = np.zeros(workers)

    def reindex(self, rows: Sequence[int | None]) -> None:
        """For each worker from now on, the row it had, or None for a new one."""
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
        """(workers,), whether a worker has been seen at all."""
        return np.asarray(self.repeats.max(axis=1, initial=0.0) > 0)

    @property
    def known(self) -> NDArray[np.bool_]:
        """(workers,), whether what was seen of a worker tells its curve.

        It does not where a spike has left it with a small batch alone, since all else was forgotten.
        """
        largest = np.where(self.repeats > 0, self.sizes, 0.0).max(axis=1, initial=0.0)
        return np.asarray(self.seen & ~(self._lost & (largest < _LITTLE * largest.mean())))

    @property
    def latest_sizes(self) -> Array:
        """(workers,), the batch size seen last; where nothing was seen, the others' average, or 1."""
        latest = np.where(self.repeats > 0, -self._age, -np.inf).argmax(axis=1)
        sizes = self.sizes[np.arange(len(latest)), latest]
        seen = self.seen
        return np.where(seen, sizes, sizes[seen].mean() if seen.any() else 1.0)

    @property
    def variances(self) -> Array:
        """Of the times, relative; infinite for an empty place."""
        with np.errstate(divide="ignore"):
            return self.noise[:, None] ** 2 / self.repeats + _AGEING * self._age + self._doubt

    def restore(self, worker: int, sizes: Array, times: Array) -> None:
        """Begin a worker's row with what an earlier run saw, in doubt, since its speed may have changed."""
        kept = min(len(sizes), SIZES_KEPT)
        self.sizes[worker, :kept], self.times[worker, :kept] = sizes[:kept], times[:kept]
        self.repeats[worker, :kept] = 1.0
        self._doubt[worker, :kept] = _DOUBT

    def add(self, workers: NDArray[np.int64], sizes: Array, times: Array, expected: Array) -> None:
        """Take in an iteration of some of the workers.

        A time that is far from what was expected is left out, but if the next one is, too, and on the
        same side, or if many are, it is taken, and whatever else was seen is doubted, more and more, until it
        is forgotten. At a batch size that was seen before, the worker has changed, and all its times are
        scaled by as much; they are still doubted, since a cut bandwidth adds a constant where a slower GPU
        multiplies. At another, it was the curve that was wrong.

        Args:
            workers: (seen,), rows.
            sizes: (seen,), samples, at least 1.
            times: (seen,), seconds.
            expected: (seen,), seconds that the curve gave; of no matter for a worker not seen before.
        """
        self._age += 1
        self._doubt[workers] *= _DOUBT_GROWS
        forgotten = self._doubt > _MOST_DOUBT
        self.repeats[forgotten] = self._doubt[forgotten] = 0.0
        self._lost |= forgotten.any(axis=1)
        known = self.repeats[workers] > 0
        away = np.where(known, np.abs(np.log(self.sizes[workers] / sizes[:, None])), np.inf)  # (seen, places)
        nearest = away.argmin(axis=1)
        distance = away[np.arange(len(workers)), nearest]
        first = ~known.any(axis=1)
        surprise = np.where(first, 0.0, np.log(times / expected))
        usual = np.maximum(_LEAST_SURPRISE, _SURPRISES * self.noise[workers])
        surprised = np.abs(surprise) > usual + _UNSEEN_SURPRISE * np.where(first, 0.0, distance)
        alike = surprised & (surprise * self.surprise[workers] > 0)
        changed = alike | (surprised & (self._left_out[workers] >= _LEFT_OUT))
        # One that comes soon after another shows that the whole curve has not changed by a factor.
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
        # An empty place, or that of the size that was not seen for longest.
        oldest = np.where(known, -self._age[workers], -np.inf).argmin(axis=1)
        place = np.where(same, nearest, oldest)
        at = (workers[taken], place[taken])
        # What is doubted counts for less than the times that it is an average of.
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
        """Scale all that was seen of some workers, and let what comes count more."""
        self.times[workers] *= factors[:, None]
        self._doubt[workers] = np.maximum(self._doubt[workers], _DOUBT)
        self.repeats[workers] = np.minimum(self.repeats[workers], 1.0)
        self.iterations[workers] = 0
