"""How much of a worker's time does not depend on its batch size, learnt from a job's iterations.

A worker's time for c samples is taken to be s (r + c): r, its fixed cost in samples, stays; s, its level,
changes, with contention and by chance. A balancer makes r hard to learn, in three ways.

- It gives a worker that slows down less: batch sizes fall and times stay, as if all of its cost were fixed.
  So where no value of r explains times in a row, or others take more or less of the worker's CPUs than
  before, s has changed, and the level starts anew. Single times that are far off are left out.
- It follows chance. A batch size is settled before its iteration and says nothing of what chance brings
  there, but it answers what came before, and from that the level is estimated: a level from few iterations
  errs as the batch size does, and r comes out too low, as with fixed effects in short panels (Nickell, 1981).
  So levels are means of as many iterations as there are, but where following faster predicts better. For
  what is left of it, levels are random effects: where a job began evenly, values of r are the more likely
  the more alike they make the workers.
- Once balanced, batch sizes vary little, and nothing more can be learnt. So what is known is a distribution,
  that of a hierarchical Bayesian model, worked out on a grid: by a worker's own times, and by the others',
  as they run the same model and so mostly have a similar r; how similar, is learnt, too. Before anything is
  seen, any share of an even share's time is as likely to be fixed.
"""

import numpy as np
from numpy.typing import NDArray

from evenpace.overview.statistics import Array

_TRIED = 16  # values of r
_FINEST, _LARGEST = 0.05, 10.0  # of them, in even shares: the step near 0, and the last one
_BETWEEN = 4  # places from one to the next; at those between, costs are interpolated
_SURE = (0.1, 0.5, 0.9)  # probabilities that r is below its least, its likely value, and its most
_ALIKE = (1.0, 3.0)  # standard deviations of workers' r around the job's, in steps of the values tried; or 0
_GAINS = np.array([0.0, 0.2])  # how fast the level may follow: for steady workers, and for others
_NOISE, _NOISE_WEIGHT = 0.05, 10.0  # of a time, relative; as if measured in so many iterations
_LEAST_NOISE = 1e-3
_OUTLIER = 3.0  # standard deviations that noise explains
_HICCUPS = 2  # outliers in a row that may be chance
_OTHER_CPU = 0.1  # change of the share of its CPUs that others take, beyond which s has changed
_MEMORY = 1000.0  # iterations; older ones fade
_EVENLY = 1.0  # samples off an even share that rounding explains
_MISLED = 0.01  # probability that a worker's own times say nothing: as a first one that was far off


class FixedCosts:
    """What is known of each column's r. Arrays are (columns,) or (gains, values of r, columns)."""

    def __init__(self) -> None:
        self._share = 0.0  # samples of an even share in the first iteration, by which r is measured
        self._forget(0)

    def observe(self, sizes: Array, times: Array, cpu_usages: Array, columns: NDArray[np.int64]) -> None:
        """Learn from an iteration.

        Args:
            sizes: Samples, (columns given,).
            times: Batch processing times.
            cpu_usages: Share of its CPUs that others take.
            columns: Which these are.
        """
        if not len(sizes) or not (even := float(sizes.mean())) > 0:
            return
        self._share = self._share or even
        busy = np.flatnonzero((sizes > 0) & (times > 0) & np.isfinite(times))
        sizes, times, cpu, columns = sizes[busy], times[busy], np.nan_to_num(cpu_usages[busy]), columns[busy]
        known, since = self._since[columns] > 0, self._since[columns]
        seen = np.log(times) - np.log(self._share * _VALUES[:, None] + sizes)
        error = seen - self._level[:, :, columns]
        squares = error**2
        smallest = squares.min(axis=(0, 1))
        explained = _OUTLIER**2 * self._noise[columns] / self._weight[columns]
        odd = known & (smallest > explained)
        odd_since = np.where(odd, self._odd_since[columns] + 1, 0)
        new = ~known | (np.abs(cpu - self._cpu[columns]) > _OTHER_CPU) | (odd_since > _HICCUPS)
        used = known & ~new & ~odd
        since = np.where(new, 1, np.minimum(since + used, _MEMORY))
        gains = np.where(new, 1.0, np.where(used, np.maximum(_GAINS[:, None], 1 / since), 0.0))
        self._level[:, :, columns] += error * gains[:, None, :]
        fading = 1 - used / _MEMORY
        # The errors of the mean of all before, scaled so that their sum is that of squares around the mean.
        self._squares[:, :, columns] *= fading
        self._squares[:, :, columns] += np.where(used, squares * (1 - 1 / since), 0.0)
        self._count[columns] = self._count[columns] * fading + used
        fading = 1 - known / _MEMORY
        self._noise[columns] = self._noise[columns] * fading + known * np.minimum(smallest, explained)
        self._weight[columns] = self._weight[columns] * fading + known
        self._began_even[columns] = np.where(known, self._began_even[columns], np.abs(sizes - even) < _EVENLY)
        self._since[columns] = since
        self._odd_since[columns] = np.where(new, 0, odd_since)
        self._cpu[columns] = cpu

    def resize(self, keep: NDArray[np.int64], count: int) -> None:
        """Have so many columns, of which the first are the old ones named."""
        old = self._arrays
        self._forget(count)
        new = self._arrays
        for before, after in zip(old, new, strict=True):
            after[..., : len(keep)] = before[..., keep]

    def quantiles(self) -> Array:
        """What r is at the least, likely, and at the most, in samples, (3, columns).

        It is below the least, and above the most, with a probability of a tenth each.
        """
        every = np.arange(len(self._count))
        gain = self._squares.min(axis=1).argmin(axis=0)
        squares = np.maximum(_PARABOLAS @ self._squares[gain, :, every].T, 0.0)
        squares += _LEAST_NOISE**2 * (1 + self._count)
        cost = self._count * np.log(
            squares / squares.min(axis=0)
        )  # of the r of each place, (places, columns)
        own = _MISLED + (1 - _MISLED) * np.exp(-cost / 2)
        job = np.log(_PRIOR)
        levels = self._level[gain, :, every].T[:, self._began_even & (self._count > 0)]
        if levels.shape[1] > 1:
            spread = (_PARABOLAS @ levels).var(axis=1) + _LEAST_NOISE**2
            job = job - (levels.shape[1] - 1) / 2 * np.log(spread)
        given = [around @ own for around in _AROUND]  # likelihoods of the job's place, (places, columns)
        logs = np.stack([job + np.log(each).sum(axis=1) for each in given])
        weights = np.exp(logs - logs.max())  # of the job's place and of how alike workers are
        likely = own * sum(
            around.T @ (weight[:, None] / each)
            for around, weight, each in zip(_AROUND, weights, given, strict=True)
        )
        return self._share * _values(_quantile_places(likely))

    @property
    def _arrays(self) -> tuple[NDArray[np.generic], ...]:
        return (
            *(self._level, self._squares, self._count, self._noise, self._weight),
            *(self._since, self._odd_since, self._began_even, self._cpu),
        )

    def _forget(self, count: int) -> None:
        self._level = np.zeros((len(_GAINS), _TRIED, count))
        self._squares = np.zeros((len(_GAINS), _TRIED, count))  # of errors
        self._count = np.zeros(count)  # of errors
        self._noise = np.full(count, _NOISE**2 * _NOISE_WEIGHT)  # squares of the smallest errors
        self._weight = np.full(count, _NOISE_WEIGHT)  # how many those are
        self._since = np.zeros(count)  # iterations that the level has
        self._odd_since = np.zeros(count)  # outliers up to the last iteration
        self._began_even = np.zeros(count, dtype=bool)  # with a batch size that says nothing of its speed
        self._cpu = np.zeros(count)


def _values(places: Array) -> Array:
    """Fixed costs in even shares; one tried at each whole place, dense near 0, where times depend on it."""
    return np.asarray(_FINEST * np.expm1(places * np.log1p(_LARGEST / _FINEST) / (_TRIED - 1)))


def _quantile_places(likely: Array) -> Array:
    """Where distributions, (places, columns), reach each of `_SURE`; (3, columns)."""
    below = (likely.cumsum(axis=0) - likely / 2) / likely.sum(axis=0)
    every = np.arange(below.shape[1])
    found = []
    for probability in _SURE:
        after = np.clip((below < probability).sum(axis=0), 1, len(below) - 1)
        low, high = below[after - 1, every], below[after, every]
        part = np.clip((probability - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
        found.append(_PLACES[after - 1] + part * _PLACES[1])
    return np.array(found)


def _parabolas() -> Array:
    """(places, tried): the parabola through the values at the three nearest, at each place."""
    nearest = np.clip(np.round(_PLACES).astype(int), 1, _TRIED - 2)
    off, every = _PLACES - nearest, np.arange(len(_PLACES))
    weights = np.zeros((len(_PLACES), _TRIED))
    weights[every, nearest - 1] = off * (off - 1) / 2
    weights[every, nearest] = 1 - off**2
    weights[every, nearest + 1] = off * (off + 1) / 2
    return weights


def _around(spread: float) -> Array:
    """(places, places): the distribution of a worker's place for each of the job's."""
    near = np.exp(-(((_PLACES[:, None] - _PLACES) / spread) ** 2) / 2)
    return np.asarray(near / near.sum(axis=1, keepdims=True))


_PLACES = np.arange((_TRIED - 1) * _BETWEEN + 1) / _BETWEEN
_VALUES = _values(np.arange(float(_TRIED)))
_PARABOLAS = _parabolas()
_PRIOR = np.gradient(_values(_PLACES) / (1 + _values(_PLACES)))  # even in the share of time that is fixed
_AROUND = [np.eye(len(_PLACES)), *map(_around, _ALIKE)]
