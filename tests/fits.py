"""Fits for tests of who runs them, small enough to be checked by hand, and a predictor that learns so."""

import os
from dataclasses import dataclass

import numpy as np

from predictors import Predictor


@dataclass(frozen=True)
class Double:
    """Learns twice the number that it was given, and in which process."""

    number: float

    def run(self):
        """Run the fit, as `predictors.Fit` describes."""
        return {"doubled": np.array([2 * self.number]), "process": np.array([os.getpid()])}


@dataclass(frozen=True)
class Sum:
    """Learns the sum of all that is in some arrays."""

    arrays: list[np.ndarray]

    def run(self):
        """Run the fit, as `predictors.Fit` describes."""
        return {"sum": np.array([sum(array.sum() for array in self.arrays)])}


@dataclass(frozen=True)
class Refuse:
    """Cannot learn."""

    def run(self):
        """Run the fit, as `predictors.Fit` describes."""
        raise ValueError("nothing to be learned here")


@dataclass(frozen=True)
class Die:
    """Takes its process with it."""

    def run(self):
        """Run the fit, as `predictors.Fit` describes."""
        os._exit(3)


@dataclass(frozen=True)
class Endless:
    """Opens a file to say that it runs, and never ends."""

    started: str

    def run(self):
        """Run the fit, as `predictors.Fit` describes."""
        with open(self.started, "w") as stream:
            stream.write(str(os.getpid()))
        while True:
            pass


@dataclass(frozen=True)
class MeanFit:
    """Finds each worker's mean speed, and fails where it is told to."""

    speeds: np.ndarray  # (iterations, workers)
    fails: bool

    def run(self):
        """Learn; also which process did it."""
        if self.fails:
            raise ArithmeticError("no luck")
        means = np.nanmean(self.speeds, axis=0)
        return {"mean": means, "process": np.full(len(means), float(os.getpid()))}


class Learner(Predictor):
    """Predicts the mean of all speeds until its last fit, and before it, the last speed."""

    def __init__(self, options, fails=False):
        self.options, self.fails = options, fails
        self.speeds, self.usage, self.taken, self.next = [], [], [], options.first_fit

    def _reindex(self, rows):
        self.last = np.full(len(rows), np.nan)

    def observe(self, speeds, cpu_usage, memory_usage):
        """Keep everything."""
        self.speeds.append(speeds.copy())
        self.usage.append((cpu_usage.copy(), memory_usage.copy()))
        self.last = np.where(np.isnan(speeds), self.last, speeds)

    def predict(self):
        """The mean, or the last."""
        learned = [weights for weights in self.taken if weights is not None]
        return (learned[-1]["mean"] if learned else self.last).copy()

    def due_fit(self):
        """Every so often."""
        return MeanFit(np.array(self.speeds), self.fails) if len(self.speeds) >= self.next else None

    def take_fit(self, weights):
        """Keep it; one that failed stays due."""
        self.taken.append(weights)
        if weights is not None:
            self.next += self.options.refit_every
