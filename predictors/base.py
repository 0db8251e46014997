"""The interface of predictors: arrays in, arrays out, for all workers of a job at once; no I/O.

Some predictors are fitted to the past, which takes seconds of CPU. They do not do that themselves: `due_fit`
hands out the work as a value that can be sent to another process, and `take_fit` takes in the result.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray

from idl.settings import Checked, Setting

Array = NDArray[np.float64]

Weights = Mapping[str, Array]
"""A fitted model: named arrays. For all workers of a job, their first dimension is the workers'."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A kind of device, which has models as workers have: those that were learned on such devices."""

    name: str  # the name that workers give their device; empty for workers that name none

    def __str__(self) -> str:
        """Return the kind's name."""
        return self.name


ModelKey = str | DeviceKind
"""What a model was learned of: a worker, by its name, or a kind of device."""

Models = Mapping[str, Mapping[ModelKey, Weights]]
"""Fitted models to keep: by the predictor's name, then by worker or kind of device."""


def reindexed(array: Array, rows: Sequence[int | None], unknown: float) -> Array:
    """Return a copy of a per-worker array with its rows moved to a new list of workers.

    Args:
        array: An array whose first dimension is the workers', (workers, ...).
        rows: For each worker from now on, its row in `array`, or None for a new one.
        unknown: The value that fills a new worker's row.
    """
    moved = np.full((len(rows), *array.shape[1:]), unknown)
    for new, old in enumerate(rows):
        if old is not None:
            moved[new] = array[old]
    return moved


@dataclass(frozen=True)
class PredictorOptions(Checked):
    """The schedule and the data of the fits of predictors that learn.

    Raises:
        ValueError: A number is out of its range.
    """

    # Until then the moving average predicts (LB-BSP, section 4: 500).
    first_fit: Annotated[
        int, Setting("Iterations before a predictor that learns is fitted first.", least=20)
    ] = 500
    refit_every: Annotated[int, Setting("Iterations between fits.", least=1)] = 100
    # The most iterations that a fit is made on; the latest are taken.
    fit_window: Annotated[int, Setting(least=20)] = 1000
    # Seed of a network's first weights and of the order of its samples.
    seed: Annotated[int, Setting(least=0)] = 0


class Fit(Protocol):
    """A piece of learning that takes long: a value that can be pickled and run in another process.

    To make one takes no time to speak of: all that has to be computed or copied is left to `run`.
    """

    def run(self) -> Weights:
        """Learn; the arrays' first dimension is the workers of the moment when the fit was handed out."""


class Predictor(ABC):
    """A predictor of each worker's sample-processing speed in the next iteration.

    Rows stand for workers; speeds are in samples per second.
    """

    workers: tuple[str, ...] = ()  # the workers' names, in the order of the rows

    def set_workers(self, workers: Sequence[str]) -> None:
        """Set the job's workers, in the order of the rows; workers that stay keep their state."""
        row_of = {worker: row for row, worker in enumerate(self.workers)}
        self.workers = tuple(workers)
        self._reindex([row_of.get(worker) for worker in workers])

    @abstractmethod
    def _reindex(self, rows: Sequence[int | None]) -> None:
        """Move the state: for each worker from now on, the row that it had, or None for a new one."""

    @abstractmethod
    def observe(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Take in one iteration's measurements.

        Args:
            speeds: (workers,); NaN where a worker had no samples.
            cpu_usage: (workers,), from 0 to 1, at the end of the iteration: for the next one, this is the
                *current* usage (c^k in LB-BSP, eq. 4).
            memory_usage: (workers,), from 0 to 1, likewise.
        """

    @abstractmethod
    def predict(self) -> Array:
        """Return the speeds expected in the next iteration, (workers,); NaN where never observed."""

    def due_fit(self) -> Fit | None:
        """Return a fit that is to be run now, or None; the next comes only after `take_fit`."""
        return None

    def take_fit(self, weights: Weights | None) -> None:
        """Take in the result of the fit that was handed out last; None if it failed."""
        raise AssertionError(f"{type(self).__name__} hands out no fits")

    def models(self) -> Models:
        """Return the fitted models of the workers, in their order, that later runs can start from."""
        return {}
