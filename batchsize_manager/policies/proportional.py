"""Alg. 1 of LB-BSP: batch sizes in proportion to the predicted speeds."""

from collections.abc import Mapping, Sequence

import numpy as np

from batchsize_manager.policies.base import LastSplits, Participant, Policy, Split
from batchsize_manager.policies.solver import split
from idl.records import WorkerRecord
from predictors import Fit, Models, Predictor, Weights

_SLOWEST = 1e-9  # samples per second; keeps a prediction of 0 from dividing by it


class Proportional(Policy):
    """Alg. 1: give each worker x_i = X * v_i / sum(v), with speeds v_i as `predictor` expects them.

    A worker that has not been measured yet is taken to be as fast as the others are on average.

    Args:
        predictor: The predictor of the speeds, in samples per second.
        tolerance: Keep the last split of a batch of this size while its slowest worker is predicted to take
            at most 1 + `tolerance` times as long as with the best one. A new batch size costs every
            framework something (kernels are chosen, graphs traced, memory laid out again), so following
            each small change of the prediction does not pay. 0 is the paper's algorithm.
    """

    def __init__(self, predictor: Predictor, tolerance: float = 0.0) -> None:
        self._predictor = predictor
        self._tolerance = tolerance
        self._last = LastSplits()
        self._members: Sequence[Participant] = ()

    def set_members(self, members: Sequence[Participant]) -> None:
        """Set the workers of the predictor; see `Policy.set_members`."""
        self._predictor.set_workers([member.name for member in members])
        self._members = members
        self._last.clear()

    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Let the predictor observe an iteration's speeds and usage; see `Policy.observe`."""
        unmeasured = WorkerRecord(0, 0.0)
        seen = [observations.get(member.name, unmeasured) for member in self._members]
        self._predictor.observe(
            np.array([observation.speed * self.unit for observation in seen]),
            np.array([observation.cpu_usage for observation in seen]),
            np.array([observation.memory_usage for observation in seen]),
        )

    def split(self, total: int) -> Split:
        """Split the next batch in proportion to the predicted speeds; see `Policy.split`."""
        speeds = self._predictor.predict()
        predicted = speeds.tolist()
        unknown = np.isnan(speeds)
        speeds[unknown] = 1.0 if unknown.all() else speeds[~unknown].mean()
        bounds = [member.bounds for member in self._members]
        speeds = np.maximum(speeds, _SLOWEST)
        best = split(speeds.tolist(), total, bounds)
        last = self._last.get(total, best)
        if (last / speeds).max() > (1 + self._tolerance) * (best / speeds).max():
            last = best
        self._last[total] = last
        return Split(list(last), predicted_speeds=predicted)

    def due_fit(self) -> Fit | None:
        """Return the predictor's fit, if it has one to run."""
        return self._predictor.due_fit()

    def take_fit(self, weights: Weights | None) -> None:
        """Pass a fit's result on to the predictor; see `Policy.take_fit`."""
        self._predictor.take_fit(weights)

    def models(self) -> Models:
        """Return the predictor's models."""
        return self._predictor.models()
