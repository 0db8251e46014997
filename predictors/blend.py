"""A mean of several predictors, weighted by their recent errors, for each worker by itself."""

from collections.abc import Sequence

import numpy as np

from predictors.base import Array, Fit, Models, Predictor, Weights, reindexed

_FORGET = 0.98  # per iteration, of the members' squared errors


class Blend(Predictor):
    """The members' mean, in which each counts by how likely it makes the recent past.

    This is Bayesian averaging with forgetting (Raftery et al., 2010: dynamic model averaging): with errors
    taken to be normal, of the variance that the best member shows, a member whose discounted sum of squared
    errors is larger by D has exp(-D / (2 * variance)) times the weight. A member that predicts NaN has no
    weight.

    Args:
        members: The predictors to combine, at least one.
    """

    def __init__(self, members: Sequence[Predictor]) -> None:
        self._members = list(members)
        self._predicted = np.empty((0, len(self._members)))
        self._losses = np.empty((0, len(self._members)))  # discounted sums of squared errors
        self._counts = np.empty((0, len(self._members)))  # of iterations in them, discounted alike
        self._fitting: Predictor | None = None  # the member whose fit is being run

    def set_workers(self, workers: Sequence[str]) -> None:
        """Set the workers of all members; see `Predictor.set_workers`."""
        for member in self._members:
            member.set_workers(workers)
        super().set_workers(workers)

    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Measure each member's error and let all learn from one iteration; see `Predictor.observe`."""
        squares = (speeds[:, None] - self._predicted) ** 2
        judged = np.isfinite(squares)
        keep = np.where(np.isnan(speeds), 1.0, _FORGET)[:, None]
        self._losses = keep * self._losses + np.where(judged, squares, 0.0)
        self._counts = keep * self._counts + judged
        for member in self._members:
            member.observe(speeds, cpu_usage, memory_usage)
        self._predicted = np.stack([member.predict() for member in self._members], axis=1)

    def predict(self) -> Array:
        """Return the weighted means, (workers,); see `Predictor.predict`."""
        known = np.isfinite(self._predicted)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Members that predicted for a part of the time only are compared by their mean error.
            means = np.where(known, self._losses / np.maximum(self._counts, 1.0), np.inf)
            best = means.min(axis=1, initial=np.inf, keepdims=True)
            behind = np.where(known, self._counts * (means / best - 1), np.inf)
            weights = np.exp(-0.5 * np.where(np.isnan(behind), 0.0, behind))
            weighted = np.where(known, weights * self._predicted, 0.0).sum(axis=1)
            predicted: Array = weighted / np.where(known, weights, 0.0).sum(axis=1)
        return predicted

    def due_fit(self) -> Fit | None:
        """Return the fit of the first member that has one; one is run at a time."""
        if self._fitting is not None:
            return None
        for member in self._members:
            fit = member.due_fit()
            if fit is not None:
                self._fitting = member
                return fit
        return None

    def take_fit(self, weights: Weights | None) -> None:
        """Pass the result on to the member whose fit it was; see `Predictor.take_fit`."""
        assert self._fitting is not None, "no fit is out"
        member, self._fitting = self._fitting, None
        member.take_fit(weights)

    def models(self) -> Models:
        """Return the models of all members; see `Predictor.models`."""
        return {name: models for member in self._members for name, models in member.models().items()}

    def _reindex(self, rows: Sequence[int | None]) -> None:
        self._predicted = reindexed(self._predicted, rows, np.nan)
        self._losses = reindexed(self._losses, rows, 0.0)
        self._counts = reindexed(self._counts, rows, 0.0)
