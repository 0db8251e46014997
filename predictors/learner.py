"""When predictors that need fits make them, on what, and for whom: all but what is fitted."""

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from predictors.base import Array, Fit, Models, Predictor, PredictorOptions, Weights, reindexed
from predictors.history import LAGS, History

FEWEST = 16
"""Samples of a worker that a model of its own needs."""


class Learner(Predictor):
    """Predicts with one model for each worker, fitted to its latest iterations every now and then.

    A worker without a model of its own has the one that `models` has for it, else it borrows one: the first
    that was fitted to a worker that is here, else the first in `models`. A model that was not fitted to what
    this worker did in this job is adapted to its mean speed. Predicts NaN where there is none, or not enough
    past for the inputs.

    Args:
        name: In `PREDICTORS`; its models are known by it.
        shapes: Of the weights of one worker, by their names, so that saved ones can be checked.
        options: When and on how much to fit.
        models: Where earlier models of those who join are looked up, under `name`.

    Raises:
        ValueError: A saved model has other weights than `shapes`, or any that is not finite.
    """

    def __init__(
        self, name: str, shapes: Mapping[str, tuple[int, ...]], options: PredictorOptions, models: Models
    ) -> None:
        self.name = name
        self.options = options
        self.history = History(options.fit_window + LAGS)
        self._earlier = models.get(name, {})
        for worker, weights in self._earlier.items():
            check_weights(f"{name} model of {worker}", shapes, weights)
        self._shapes = shapes
        self._own: dict[str, Weights] = {}  # models that were fitted here
        self._observed = 0  # iterations
        self._next_fit = options.first_fit
        self._fitting: tuple[str, ...] | None = None  # whose fit is out
        self._sums = np.empty((0, 2))  # (workers, 2): of speeds, and how many
        self._current: dict[str, Array] = {}  # the workers' models, stacked in their order; empty if none

    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Keep one iteration; see `Predictor`."""
        self.history.append(speeds, cpu_usage, memory_usage)
        self._sums += np.stack((np.nan_to_num(speeds), ~np.isnan(speeds)), axis=1)
        self._observed += 1

    def predict(self) -> Array:
        """The models' speeds, (workers,)."""
        if not self._current or len(self.history) < LAGS:
            return np.full(len(self.workers), np.nan)
        return self._forecast(self._adapted(self._current))

    def due_fit(self) -> Fit | None:
        """A fit of all workers' models to the latest iterations."""
        if self._fitting is not None or self._observed < self._next_fit or not self.workers:
            return None
        self._next_fit = self._observed + self.options.refit_every
        self._fitting = self.workers
        return self._make_fit(self._adapted(self._current) if self._current else None)

    def take_fit(self, weights: Weights | None) -> None:
        """Use what was learnt, for those whose weights are finite; see `Predictor`."""
        assert self._fitting is not None, "no fit is out"
        fitted, self._fitting = self._fitting, None
        if weights is None:
            return
        arrays = {name: np.asarray(weights[name], dtype=float) for name in self._shapes}
        finite = np.all([np.isfinite(a).reshape(len(fitted), -1).all(axis=1) for a in arrays.values()], 0)
        for row in np.flatnonzero(finite):
            self._own[fitted[row]] = {name: array[row].copy() for name, array in arrays.items()}
        self._select()

    def models(self) -> Models:
        """The models that were fitted here, by `name`; last, those of who went while they were fitted."""
        own = self._own_of_workers() | self._own
        return {self.name: own} if own else {}

    @abstractmethod
    def _make_fit(self, start: Weights | None) -> Fit:
        """A fit to `history` that starts from these weights, if there are any.

        What it finds has NaN for workers with fewer than `FEWEST` samples.
        """

    @abstractmethod
    def _forecast(self, weights: Weights) -> Array:
        """The speeds that models give, (workers,), NaN where the past is too short."""

    def _adapted(self, models: Weights) -> Weights:
        """The models of others, and of earlier runs, as they would be for these workers."""
        return models

    def _relative_speeds(self, mean_speeds: Array) -> Array:
        """How fast each worker is, as a multiple of the mean speed that its model was fitted to.

        Args:
            mean_speeds: (workers,), that the models were fitted to.

        Returns:
            (workers,); 1 for a model that was fitted to the worker itself, in this job.
        """
        own = np.array([worker in self._own for worker in self.workers])
        unknown = own | (self._sums[:, 1] == 0)
        means = self._sums[:, 0] / np.maximum(self._sums[:, 1], 1)
        return np.where(unknown, 1.0, means / mean_speeds)

    def _select(self) -> None:
        """Choose each worker's model."""
        borrowed = next(itertools.chain(self._own.values(), self._earlier.values()), None)
        if borrowed is None or not self.workers:
            self._current = {}
            return
        chosen = [self._own.get(worker) or self._earlier.get(worker, borrowed) for worker in self.workers]
        self._current = {name: np.stack([model[name] for model in chosen]) for name in self._shapes}

    def _own_of_workers(self) -> dict[str, Weights]:
        return {worker: self._own[worker] for worker in self.workers if worker in self._own}

    def _reindex(self, rows: Sequence[int | None]) -> None:
        self._own = self._own_of_workers()
        self.history.reindex(rows)
        self._sums = reindexed(self._sums, rows, 0.0)
        self._select()


def check_weights(what: str, shapes: Mapping[str, tuple[int, ...]], weights: Weights) -> dict[str, Array]:
    """Saved weights as arrays.

    Raises:
        ValueError: They are not the ones expected, or not finite.
    """
    if set(weights) != set(shapes):
        raise ValueError(f"{what}: has {sorted(weights)}, should have {sorted(shapes)}")
    arrays = {name: np.array(weights[name], dtype=float) for name in shapes}
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise ValueError(f"{what}: {name} has shape {array.shape}, should have {shapes[name]}")
        if not np.isfinite(array).all():
            raise ValueError(f"{what}: {name} is not finite")
    return arrays
