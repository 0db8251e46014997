"""What every predictor is: arrays in, arrays out, for all workers of a job at once; no input or output.

Some predictors learn from the past, which takes seconds of CPU. They do not do so themselves: `due_fit`
hands out the work as a value that can be sent to another process, and `take_fit` brings back what it found.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

Weights = Mapping[str, Array]
"""A fitted model: named arrays. For all workers of a job, their first dimension is the workers'."""

Models = Mapping[str, Mapping[str, Weights]]
"""Fitted models to keep: by the predictor's name, then by the worker's name, each worker's own weights."""


def reindexed(array: Array, rows: Sequence[int | None], unknown: float) -> Array:
    """An array whose first dimension is the workers', for other workers.

    Args:
        array: (workers, ...).
        rows: For each worker from now on, its row in `array`, or None for a new one.
        unknown: What to fill a new worker's row with.
    """
    moved = np.full((len(rows), *array.shape[1:]), unknown)
    for new, old in enumerate(rows):
        if old is not None:
            moved[new] = array[old]
    return moved


@dataclass(frozen=True)
class PredictorOptions:
    """How predictors that learn do so.

    Attributes:
        first_fit: Iterations before the first fit; until then the moving average predicts (LB-BSP,
            section 4: 500).
        refit_every: Iterations between fits.
        fit_window: Latest iterations that a fit is made on, at most.
        seed: Of a network's first weights and of the order of its samples.

    Raises:
        ValueError: A number is out of its range.
    """

    first_fit: int = 500
    refit_every: int = 100
    fit_window: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.first_fit < 20:
            raise ValueError(f"first_fit {self.first_fit}: must be at least 20 iterations")
        if self.refit_every < 1:
            raise ValueError(f"refit_every {self.refit_every}: must be at least 1 iteration")
        if self.fit_window < 20:
            raise ValueError(f"fit_window {self.fit_window}: must be at least 20 iterations")
        if self.seed < 0:
            raise ValueError(f"seed {self.seed}: must be at least 0")


class Fit(Protocol):
    """A piece of learning that takes long: a value that can be pickled and run in another process.

    To make one takes a moment only: what has to be computed or copied is `run`'s.
    """

    def run(self) -> Weights:
        """Learn; the arrays' first dimension is that of the workers when it was handed out."""


class Predictor(ABC):
    """Predicts each worker's sample-processing speed in the next iteration.

    Rows stand for workers; speeds are in samples per second.

    Attributes:
        workers: The workers' names, in the order of the rows.
    """

    workers: tuple[str, ...] = ()

    def set_workers(self, workers: Sequence[str]) -> None:
        """The job's workers from now on, in the order of the rows; who stays keeps what is known."""
        row_of = {worker: row for row, worker in enumerate(self.workers)}
        self.workers = tuple(workers)
        self._reindex([row_of.get(worker) for worker in workers])

    @abstractmethod
    def _reindex(self, rows: Sequence[int | None]) -> None:
        """Move the state: for each worker from now on, the row it had, or None for a new one."""

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
        """The speeds expected in the next iteration, (workers,); NaN for a worker never observed."""

    def due_fit(self) -> Fit | None:
        """Learning that is to be done now; no other is handed out until its end has been told."""
        return None

    def take_fit(self, weights: Weights | None) -> None:
        """What the fit handed out last has learnt, or None where it failed."""
        raise AssertionError(f"{type(self).__name__} hands out no fits")

    def models(self) -> Models:
        """What has been learnt of the workers so far, in their order, worth keeping for later runs."""
        return {}
