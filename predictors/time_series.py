"""The latest iterations' measurements, and the inputs and targets of LB-BSP's equation 4.

It knows rows, not workers' names, and nothing of the models that are fitted to them.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from predictors.base import Array

LAGS = 3
"""Iterations whose measurements are inputs of one prediction, that of the current usage included."""

SPEED, CPU, MEMORY = range(3)
"""Channels of a measurement: samples per second, and two shares from 0 to 1."""

INPUTS = (SPEED, SPEED, CPU, CPU, CPU, MEMORY, MEMORY, MEMORY)
"""The channel of each input in equation 4, in the order of `inputs`."""


class TimeSeries:
    """The measurements of the last `length` iterations, for all workers.

    Where a worker had no samples, its speed is repeated from the iteration before.

    Args:
        length: Iterations to keep.
    """

    def __init__(self, length: int) -> None:
        self._rows: deque[Array] = deque(maxlen=length)  # (channels and "was measured", workers) each
        self._workers = 0

    def __len__(self) -> int:
        """Return the number of iterations that are held."""
        return len(self._rows)

    def append(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Add one iteration's measurements, which are those of `Predictor.observe`."""
        measured = np.isfinite(speeds)
        row = np.stack((speeds, cpu_usage, memory_usage, measured))
        if self._rows:
            np.copyto(row[:3], self._rows[-1][:3], where=~np.isfinite(row[:3]))
        self._rows.append(row)

    def rows(self, iterations: int) -> list[Array]:
        """Return the last iterations, oldest first, at most as many as are held.

        Returns:
            (4, workers) for each: speed, CPU usage, memory usage, and 1 where the speed was measured; NaN
            before a worker's first measurement. They are not copied, and never change.
        """
        return list(self._rows)[-iterations:]

    def latest(self, iterations: int) -> Array:
        """Return the last iterations as one array, (iterations, 4, workers); see `rows`."""
        rows = self.rows(iterations)
        return np.stack(rows) if rows else np.empty((0, 4, self._workers))

    def reindex(self, rows: Sequence[int | None]) -> None:
        """Move the workers' columns; see `Predictor.set_workers`."""
        self._workers = len(rows)
        columns = np.array([-1 if row is None else row for row in rows], int)  # the last is of NaN
        unknown = np.full((4, 1), np.nan)
        moved = [np.concatenate((row, unknown), axis=1)[:, columns] for row in self._rows]
        self._rows.clear()
        self._rows.extend(moved)


def inputs(block: Array) -> Array:
    """Return the inputs of equation 4 for each prediction that a block of iterations allows.

    Args:
        block: (iterations, 4, workers), as `TimeSeries.latest` gives it.

    Returns:
        Inputs, (iterations - 2, workers, 8). For the prediction of v^(k+1): v^k, v^(k-1), c^(k+1), c^k,
        c^(k-1), m^(k+1), m^k, m^(k-1), where c^(k+1) was measured at the end of iteration k.
    """
    now, one_ago, two_ago = block[2:], block[1:-1], block[:-2]
    return np.stack(
        (
            *(now[:, SPEED], one_ago[:, SPEED]),
            *(now[:, CPU], one_ago[:, CPU], two_ago[:, CPU]),
            *(now[:, MEMORY], one_ago[:, MEMORY], two_ago[:, MEMORY]),
        ),
        axis=-1,
    )


def samples(block: Array) -> tuple[Array, Array, Array]:
    """Return the training samples in a block of iterations: inputs, and the speeds that followed.

    Args:
        block: (iterations, 4, workers), as `TimeSeries.latest` gives it.

    Returns:
        Inputs (samples, workers, 8), the speeds that followed (samples, workers), and the samples' weights
        (samples, workers): 0 where anything is missing (the inputs and the speed are 0, too), else 1.
    """
    given = inputs(block[:-1])
    followed = block[LAGS:, SPEED]
    usable = np.isfinite(given).all(axis=-1) & np.isfinite(followed) & (block[LAGS:, 3] > 0)
    return np.where(usable[..., None], given, 0.0), np.where(usable, followed, 0.0), usable.astype(float)
