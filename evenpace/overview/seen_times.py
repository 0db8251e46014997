"""Each worker's times at the batch sizes that it had, over the whole job: what time curves are fitted to.

The policy `learned` forgets what it doubts, as it has to follow a worker. What an even split would have
brought is asked of the past, so nothing is forgotten here, and a worker that has changed keeps its curve's
shape: all its times are scaled.
"""

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.curves import Curves, fit
from evenpace.overview.statistics import Array

_PLACES = 16  # batch sizes of each worker; where it has had more, the two nearest are put together
_SAME_SIZE = 0.05  # relative; batch sizes that close to each other have one place
_USUAL_ELASTICITY = 0.7  # relative growth of the time over that of the batch size, before a curve is fitted
_MISFIT = 0.05  # see `fit`
_DRIFT = 0.3  # likewise, of what is expected of the next time
_AGEING = 2e-6  # relative variance for each iteration since a size was seen last
_MOST_REPEATS = 1000.0  # iterations; older ones fade
_FIRST_NOISE, _FIRST_REPEATS = 0.05, 10.0  # relative deviation of a time; as if seen in so many iterations
_LEAST_NOISE = 1e-3
_NOISE_MEMORY = 100.0  # iterations
_LEAST_SURPRISE = 0.22  # log of a time over the expected one
_SURPRISES = 4.0  # deviations of the noise
_UNSEEN_SURPRISE = 0.6  # more for each factor of e to the nearest place
_FIRST = 0.1  # of an iteration, that a worker's first counts as: it may have been slow to start
_START = 0.5  # log of a factor that first times have in common, above which it is not by chance
_HICCUPS = 2  # surprises in a row that may be chance
_OTHER_CPU = 0.1  # change of the share of its CPUs that others take, which changes a worker's speed
_SETTLING = 10  # iterations in which a worker's new speed is estimated
_FIRST_FIT, _NEXT_FIT, _LAST_FIT = 4, 8, 100  # iterations to the next fit: at first, one in so many, at most
_TINY = 1e-300  # to divide by where nothing is known


class SeenTimes:
    """Average times at batch sizes; arrays are (columns,) or (columns, places), a column for each worker."""

    def __init__(self) -> None:
        self._iterations = 0
        self._curves: Curves | None = None  # as last fitted
        self._forget(0)

    def observe(self, sizes: Array, times: Array, cpu_usages: Array, columns: NDArray[np.int64]) -> None:
        """Take in an iteration.

        A time that is far from the expected one is left out. But where several in a row are, on the same
        side, or others take more or less of the worker's CPUs than before, the worker has changed.

        Args:
            sizes: Samples, (columns given,).
            times: Batch processing times, seconds.
            cpu_usages: Share of its CPUs that others take.
            columns: Which these are.
        """
        busy = np.flatnonzero((sizes > 0) & (times > 0) & np.isfinite(times))
        sizes, logs, columns = sizes[busy], np.log(times[busy]), columns[busy]
        cpu = np.nan_to_num(cpu_usages[busy])
        self._iterations += 1
        if self._iterations >= self._fit_due:
            self.curves()
        near, distance, expected = self._expected(sizes, columns)
        first = np.isinf(distance)
        known = distance < _SAME_SIZE
        error = np.where(first, 0.0, logs - expected)
        error -= self._correct_start(columns, error, distance)

        usual = np.maximum(_LEAST_SURPRISE, _SURPRISES * np.sqrt(self._noise[columns]))
        surprised = np.abs(error) > usual + _UNSEEN_SURPRISE * np.where(first, 0.0, distance)
        recent = np.column_stack([error, self._errors[columns, :_HICCUPS]])  # the last ones first
        alike = surprised & (recent[:, 0] * recent[:, 1] > 0)
        in_a_row = np.where(surprised, 1 + np.where(alike, self._in_a_row[columns], 0), 0)
        moved = ~first & (np.abs(cpu - self._cpu[columns]) > _OTHER_CPU)
        changed = moved | (in_a_row > _HICCUPS)
        taken = ~surprised | changed

        since = np.where(changed, 0.0, self._since[columns]) + taken
        settling = taken & known & ~changed & (since <= _SETTLING)
        change = np.where(moved, error, np.median(recent, axis=1))
        scale = np.where(changed, change, np.where(settling, error / np.maximum(since, 1.0), 0.0))
        self._logs[columns] += scale[:, None]
        self._since[columns] = np.where(first, np.inf, since)
        self._errors[columns] = recent
        self._in_a_row[columns] = np.where(changed, 0, in_a_row)
        self._cpu[columns] = cpu

        calm = taken & known & ~changed
        self._learn_noise(columns[calm], error[calm] ** 2)
        self._ages[columns] += 1
        weights, places = np.where(first, _FIRST, 1.0), np.where(known, near, -1)
        self._take(sizes[taken], logs[taken], weights[taken], columns[taken], places[taken])

    def curves(self) -> Curves:
        """Fit curves to all that was seen, right near the last batch sizes; (columns,)."""
        seen = self._repeats > 0
        latest = np.where(seen, -self._ages, -np.inf).argmax(axis=1)
        with np.errstate(divide="ignore"):
            variances = self._noise[:, None] / self._repeats + _AGEING * self._ages
        centres = self._sizes[np.arange(len(seen)), latest]
        curves = fit(self._sizes, np.exp(self._logs), variances, centres, _MISFIT)
        self._curves = curves = curves.averaged_over(np.asarray(seen.any(axis=1)))
        self._fit_due = self._iterations + min(max(self._iterations // _NEXT_FIT, _FIRST_FIT), _LAST_FIT)
        return curves

    def resize(self, keep: NDArray[np.int64], count: int) -> None:
        """Have so many columns, of which the first are the old ones named."""
        old = self._arrays
        self._forget(count)
        for before, after in zip(old, self._arrays, strict=True):
            after[: len(keep)] = before[keep]

    def _expected(self, sizes: Array, columns: NDArray[np.int64]) -> tuple[NDArray[np.int64], Array, Array]:
        """Return the place nearest to each batch size, how far it is, and the expected time's logarithm."""
        seen = self._repeats[columns] > 0
        away = np.where(seen, np.log(sizes[:, None] / self._sizes[columns]), 0.0)  # (columns, places)
        distances = np.where(seen, np.abs(away), np.inf)
        near = distances.argmin(axis=1)
        if self._curves is None:
            longer = _USUAL_ELASTICITY * away
        else:
            curves = self._curves.at(columns)
            longer = np.log(curves.fitted(sizes) / curves.fitted(self._sizes[columns].T)).T
        with np.errstate(divide="ignore"):
            weights = 1 / (self._noise[columns, None] / self._repeats[columns] + (_DRIFT * away) ** 2)
        told = (weights * (self._logs[columns] + longer)).sum(axis=1)
        expected: Array = told / np.maximum(weights.sum(axis=1), _TINY)
        return near, distances[np.arange(len(near)), near], expected

    def _correct_start(self, columns: NDArray[np.int64], error: Array, distance: Array) -> Array:
        """Scale first times that were long for all alike, by start-up costs.

        Returns:
            The logarithm of the factor, (columns,).
        """
        started = np.isfinite(distance) & (self._repeats[columns].sum(axis=1) <= _FIRST)
        weights = started / (self._noise[columns] + (_DRIFT * np.where(started, distance, 0.0)) ** 2)
        common = float((weights * error).sum()) / max(float(weights.sum()), _TINY)
        scale: Array = np.where(started & (abs(common) > _START), common, 0.0)
        self._logs[columns] += scale[:, None]
        return scale

    def _take(
        self,
        sizes: Array,
        logs: Array,
        weights: Array,
        columns: NDArray[np.int64],
        places: NDArray[np.int64],
    ) -> None:
        """Average times into places; -1 for who needs a new one."""
        new = places < 0
        self._merge(columns[new & (self._repeats[columns] > 0).all(axis=1)])
        places = np.where(new, self._repeats[columns].argmin(axis=1), places)
        at = (columns, places)
        repeats = np.minimum(self._repeats[at], _MOST_REPEATS) + weights
        self._sizes[at] += (sizes - self._sizes[at]) * (weights / repeats)
        self._logs[at] += (logs - self._logs[at]) * (weights / repeats)
        self._repeats[at] = repeats
        self._ages[at] = 0.0

    def _merge(self, columns: NDArray[np.int64]) -> None:
        """Put the two places together that have the most alike sizes."""
        every = np.arange(len(columns))
        order = self._sizes[columns].argsort(axis=1)
        ordered = np.log(np.take_along_axis(self._sizes[columns], order, axis=1))
        first = np.diff(ordered, axis=1).argmin(axis=1)
        one, other = (columns, order[every, first]), (columns, order[every, first + 1])
        share = self._repeats[other] / (self._repeats[one] + self._repeats[other])
        self._sizes[one] += share * (self._sizes[other] - self._sizes[one])
        self._logs[one] += share * (self._logs[other] - self._logs[one])
        self._ages[one] = np.minimum(self._ages[one], self._ages[other])
        self._repeats[one] += self._repeats[other]
        self._repeats[other] = 0.0

    def _learn_noise(self, columns: NDArray[np.int64], squares: Array) -> None:
        repeats = np.minimum(self._noise_repeats[columns], _NOISE_MEMORY) + 1
        noise = self._noise[columns] + (squares - self._noise[columns]) / repeats
        self._noise[columns] = np.maximum(noise, _LEAST_NOISE**2)
        self._noise_repeats[columns] = repeats

    @property
    def _arrays(self) -> tuple[Array, ...]:
        return (
            *(self._sizes, self._logs, self._repeats, self._ages, self._noise, self._noise_repeats),
            *(self._errors, self._in_a_row, self._since, self._cpu),
        )

    def _forget(self, count: int) -> None:
        places = (count, _PLACES)
        self._curves = None
        self._fit_due = self._iterations + _FIRST_FIT
        self._sizes: Array = np.ones(places)  # samples
        self._logs: Array = np.zeros(places)  # of seconds
        self._repeats: Array = np.zeros(places)  # iterations that a place is the average of; 0: it is empty
        self._ages: Array = np.zeros(places)  # iterations since it was last used
        self._noise: Array = np.full(count, _FIRST_NOISE**2)  # relative variance of a time
        self._noise_repeats: Array = np.full(count, _FIRST_REPEATS)
        self._errors: Array = np.zeros((count, _HICCUPS + 1))  # of the last times, the last one first
        self._in_a_row: Array = np.zeros(count)  # how many of them were surprises on one side
        self._since: Array = np.zeros(count)  # iterations since the worker changed
        self._cpu: Array = np.zeros(count)
