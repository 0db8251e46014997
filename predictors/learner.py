"""The base of predictors that need fits: when they are made, on which iterations, for which workers."""

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from predictors.base import Array, Fit, ModelKey, Models, Predictor, PredictorOptions, Weights, reindexed
from predictors.time_series import LAGS, TimeSeries

FEWEST = 16
"""The fewest samples of a worker that a model of its own is fitted to."""


class Learner(Predictor):
    """A predictor with one model for each worker, fitted to its latest iterations now and then.

    A worker without a model of its own has the one that `models` has for it, else it borrows one: the first
    that was fitted to a present worker, else the first in `models`. A model that was not fitted to this
    worker in this job is adapted to its mean speed. The prediction is NaN where there is no model, or too
    short a past for the inputs.

    Args:
        name: Its name in `PREDICTORS`, and that of its models among others.
        shapes: The shape of each array of a worker's weights, by name; saved models are checked by them.
        options: When to fit, and on how much.
        models: Earlier models, under `name` by worker, for workers that join.

    Raises:
        ValueError: A saved model has other weights than `shapes`, or one that is not finite.
    """

    def __init__(
        self, name: str, shapes: Mapping[str, tuple[int, ...]], options: PredictorOptions, models: Models
    ) -> None:
        self.name = name
        self.options = options
        self.series = TimeSeries(options.fit_window + LAGS)
        self._earlier = models.get(name, {})
        for worker, weights in self._earlier.items():
            check_weights(f"{name} model of {worker}", shapes, weights)
        self._shapes = shapes
        self._own: dict[ModelKey, Weights] = {}  # models that were fitted in this job, by worker
        self._observed = 0  # iterations
        self._next_fit = options.first_fit
        self._fitting: tuple[str, ...] | None = None  # the workers whose fit is being run
        self._sums = np.empty((0, 2))  # (workers, 2): the sum of speeds, and their number
        self._current: dict[str, Array] = {}  # the workers' models, stacked in their order; empty if none

    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Add one iteration to the past; see `Predictor.observe`."""
        self.series.append(speeds, cpu_usage, memory_usage)
        self._sums += np.stack((np.nan_to_num(speeds), ~np.isnan(speeds)), axis=1)
        self._observed += 1

    def predict(self) -> Array:
        """Return the models' speeds, (workers,); see `Predictor.predict`."""
        if not self._current or len(self.series) < LAGS:
            return np.full(len(self.workers), np.nan)
        return self._forecast(self._adapted(self._current))

    def due_fit(self) -> Fit | None:
        """Return a fit of all workers' models to the latest iterations, if it is time for one."""
        if self._fitting is not None or self._observed < self._next_fit or not self.workers:
            return None
        self._next_fit = self._observed + self.options.refit_every
        self._fitting = self.workers
        return self._make_fit(self._adapted(self._current) if self._current else None)

    def take_fit(self, weights: Weights | None) -> None:
        """Use the fitted models of workers whose weights are finite; see `Predictor.take_fit`."""
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
        """Return the models fitted in this job, under `name`; last, those of workers that have left."""
        own = self._own_of_workers() | self._own
        return {self.name: own} if own else {}

    @abstractmethod
    def _make_fit(self, start: Weights | None) -> Fit:
        """Return a fit to `series` that starts from these weights, if there are any.

        Its result has NaN for workers with fewer than `FEWEST` samples.
        """

    @abstractmethod
    def _forecast(self, weights: Weights) -> Array:
        """Return the speeds that models predict, (workers,), NaN where the past is too short."""

    def _adapted(self, models: Weights) -> Weights:
        """Return borrowed and earlier models as they would be for the present workers."""
        return models

    def _relative_speeds(self, mean_speeds: Array) -> Array:
        """Return each worker's mean speed over the mean speed that its model was fitted to.

        Args:
            mean_speeds: Samples per second that the models were fitted to, (workers,).

        Returns:
            Ratios, (workers,); 1 for a model that was fitted to the worker itself, in this job.
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

    def _own_of_workers(self) -> dict[ModelKey, Weights]:
        return {worker: self._own[worker] for worker in self.workers if worker in self._own}

    def _reindex(self, rows: Sequence[int | None]) -> None:
        self._own = self._own_of_workers()
        self.series.reindex(rows)
        self._sums = reindexed(self._sums, rows, 0.0)
        self._select()


def check_weights(what: str, shapes: Mapping[str, tuple[int, ...]], weights: Weights) -> dict[str, Array]:
    """Return saved weights as arrays.

    Raises:
        ValueError: Their names or shapes are not those of `shapes`, or a value is not finite.
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
