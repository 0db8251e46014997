"""Each worker's batch processing times at the batch sizes that it had, and the time curves fitted to them.

The policy `learned` drops measurements that it doubts, since it has to follow a worker as it is now. An
estimate for an even split is about the past, so measurements of the whole job are kept here. When a worker
becomes faster or slower, all its times are scaled by the same factor, and its curve keeps its shape.

A *place* of a worker is a batch size with the average logarithm of its times there. The log error of a time
is its logarithm less that of the time expected from the worker's places; near 0 it is the relative error.
"""

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.curves import Curves, fit
from evenpace.overview.statistics import Array

# Places
_PLACES = 16  # places of each worker; when a further one is needed, the two with the nearest sizes become one
_SAME_SIZE = 0.05  # log ratio of two batch sizes below which they share a place
_MOST_REPEATS = 1000.0  # iterations whose average a place is at most; older ones fade

# Expected times
_USUAL_ELASTICITY = 0.7  # relative growth of the time over that of the batch size, until a curve is fitted
_DRIFT = 0.3  # relative error of the expected time for each factor of e between the batch size and a place

# Noise of a worker's times
_FIRST_NOISE = 0.05  # relative standard deviation that a worker is assumed to have at first
_FIRST_REPEATS = 10.0  # iterations that this assumption weighs as much as
_LEAST_NOISE = 1e-3  # relative standard deviation
_NOISE_MEMORY = 100.0  # iterations whose average the noise is at most; older ones fade

# Surprises: log errors above max(_LEAST_SURPRISE, _SURPRISES * noise) + _UNSEEN_SURPRISE * distance
_LEAST_SURPRISE = 0.22  # log error
_SURPRISES = 4.0  # standard deviations of the noise
_UNSEEN_SURPRISE = 0.6  # log error for each factor of e between the batch size and the nearest place
_HICCUPS = 2  # surprises in a row, on one side, that are left out; one more, and the worker has changed

# Changes of a worker
_OTHER_CPU = 0.1  # change of the share of its CPUs that others take from which on a worker has changed
_SETTLING = 10  # iterations after a change over which the factor between old and new times is averaged
_FIRST = 0.1  # weight of a worker's first iteration, in iterations: it may contain start-up costs
_START = 0.5  # log error common to all first times above which it counts as start-up costs, not as chance

# Fits
_MISFIT = 0.05  # relative error of a curve for each factor of e from the last batch size
_AGEING = 2e-6  # relative variance added to a place's time for each iteration since the place was used
_FIRST_FIT = 4  # iterations to the next fit, at least
_NEXT_FIT = 8  # the next fit comes after a further 1 / _NEXT_FIT of the iterations so far
_LAST_FIT = 100  # iterations to the next fit, at most

_TINY = 1e-300  # divisor instead of 0, where nothing is known


class SeenTimes:
    """Average times of workers at their batch sizes, and the curves fitted to them.

    Its arrays are (columns,) or (columns, places), with a column for each worker.
    """

    def __init__(self) -> None:
        self._iterations = 0
        self._fit_due = 0  # iterations after which the next fit is due
        self._curves: Curves | None = None  # as of the last fit, which expected times follow from
        self._forget(0)

    def observe(self, sizes: Array, times: Array, cpu_usages: Array, columns: NDArray[np.int64]) -> None:
        """Take in an iteration.

        A time far from the expected one is left out as a surprise. After more than `_HICCUPS` of them in a
        row on the same side, or when the share of the worker's CPUs that others take changes, the worker has
        changed, and its places are scaled.

        Args:
            sizes: Batch sizes in samples, (workers,).
            times: Batch processing times in seconds, (workers,).
            cpu_usages: Share of each worker's CPUs that others take, 0 to 1, (workers,).
            columns: Columns of these workers, (workers,).
        """
        busy = np.flatnonzero((sizes > 0) & (times > 0) & np.isfinite(times))
        sizes, logs, columns = sizes[busy], np.log(times[busy]), columns[busy]
        cpu = np.nan_to_num(cpu_usages[busy])
        self._iterations += 1
        if self._iterations >= self._fit_due:
            self._curves = self.curves()
            self._fit_due = self._iterations + min(max(self._iterations // _NEXT_FIT, _FIRST_FIT), _LAST_FIT)
        near, distance, expected = self._expected(sizes, columns)
        first = np.isinf(distance)
        known = distance < _SAME_SIZE
        error = np.where(first, 0.0, logs - expected)
        error -= self._correct_start(columns, error, distance)

        usual = np.maximum(_LEAST_SURPRISE, _SURPRISES * np.sqrt(self._noise[columns]))
        surprised = np.abs(error) > usual + _UNSEEN_SURPRISE * np.where(first, 0.0, distance)
        recent = np.column_stack([error, self._errors[columns, :_HICCUPS]])  # (workers, errors), newest first
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
        """Fit curves to all places, most closely near the last batch sizes; (columns,)."""
        seen = self._repeats > 0
        latest = np.where(seen, -self._ages, -np.inf).argmax(axis=1)
        with np.errstate(divide="ignore"):
            variances = self._noise[:, None] / self._repeats + _AGEING * self._ages
        centres = self._sizes[np.arange(len(seen)), latest]
        curves = fit(self._sizes, np.exp(self._logs), variances, centres, _MISFIT)
        return curves.averaged_over(np.asarray(seen.any(axis=1)))

    def resize(self, keep: NDArray[np.int64], count: int) -> None:
        """Change the columns to `count`, the first of which are the present columns `keep`, in that order."""
        old = self._arrays
        self._forget(count)
        for before, after in zip(old, self._arrays, strict=True):
            after[: len(keep)] = before[keep]

    def _expected(self, sizes: Array, columns: NDArray[np.int64]) -> tuple[NDArray[np.int64], Array, Array]:
        """Return the nearest place to each batch size, the distance to it, and the expected time's logarithm.

        All are (workers,). The distance is the log ratio of the two batch sizes, infinite for a worker
        without a place.
        """
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
        weighted = (weights * (self._logs[columns] + longer)).sum(axis=1)
        expected: Array = weighted / np.maximum(weights.sum(axis=1), _TINY)
        return near, distances[np.arange(len(near)), near], expected

    def _correct_start(self, columns: NDArray[np.int64], error: Array, distance: Array) -> Array:
        """Scale the workers' first times where all of them were longer or shorter by about the same factor.

        Start-up costs lengthen the first iteration of all workers, which their second iterations show.

        Args:
            columns: Columns of the iteration's workers, (workers,).
            error: Log errors of their times, (workers,).
            distance: Distances to the nearest places, (workers,).

        Returns:
            The logarithm of each worker's factor, (workers,); 0 where its times were not scaled.
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
        """Average times, as logarithms of seconds, into places; all are (workers,), place -1 is a new one."""
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
        """Merge the two places of each column whose batch sizes are nearest to each other."""
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
        self._logs: Array = np.zeros(places)  # logarithms of seconds
        self._repeats: Array = np.zeros(places)  # iterations that a place is the average of; 0: it is empty
        self._ages: Array = np.zeros(places)  # iterations since the place was used
        self._noise: Array = np.full(count, _FIRST_NOISE**2)  # relative variance of a time
        self._noise_repeats: Array = np.full(count, _FIRST_REPEATS)  # iterations that it is the average of
        self._errors: Array = np.zeros((count, _HICCUPS + 1))  # log errors of the last times, newest first
        self._in_a_row: Array = np.zeros(count)  # surprises in a row on one side, up to the last time
        self._since: Array = np.zeros(count)  # iterations since the worker changed
        self._cpu: Array = np.zeros(count)  # share of the worker's CPUs that others take, 0 to 1
