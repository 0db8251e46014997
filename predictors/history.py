"""The latest iterations' measurements, and what LB-BSP's equation 4 makes of them: inputs and targets.

It knows rows, not workers' names, and nothing of what is learnt from them.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from predictors.base import Array

LAGS = 3
"""Iterations that the inputs of one prediction reach back, the current usage included."""

SPEED, CPU, MEMORY = range(3)
"""Channels of a measurement."""

INPUTS = (SPEED, SPEED, CPU, CPU, CPU, MEMORY, MEMORY, MEMORY)
"""The channel of each input in equation 4, in the order of `inputs`."""


class History:
    """The last `length` iterations, for all workers.

    Where a worker had no samples, the channel of its speed goes on with the one measured before.

    Args:
        length: Iterations to keep.
    """

    def __init__(self, length: int) -> None:
        self._rows: deque[Array] = deque(maxlen=length)  # (channels and "was measured", workers) each
        self._workers = 0

    def __len__(self) -> int:
        """Iterations that are there."""
        return len(self._rows)

    def append(self, speeds: Array, cpu_usage: Array, memory_usage: Array) -> None:
        """Take in one iteration, as told to `Predictor.observe`."""
        measured = np.isfinite(speeds)
        row = np.stack((speeds, cpu_usage, memory_usage, measured))
        if self._rows:
            np.copyto(row[:3], self._rows[-1][:3], where=~np.isfinite(row[:3]))
        self._rows.append(row)

    def rows(self, iterations: int) -> list[Array]:
        """The last so many iterations, oldest first, at most those that are there.

        Returns:
            (4, workers) for each: speed, CPU usage, memory usage, and 1 where the speed was measured; NaN
            before a worker's first measurement. They are no copies, and stay as they are.
        """
        return list(self._rows)[-iterations:]

    def latest(self, iterations: int) -> Array:
        """The same as one array, (iterations, 4, workers)."""
        rows = self.rows(iterations)
        return np.stack(rows) if rows else np.empty((0, 4, self._workers))

    def reindex(self, rows: Sequence[int | None]) -> None:
        """Move the workers; see `Predictor.set_workers`."""
        self._workers = len(rows)
        columns = np.array([-1 if row is None else row for row in rows], int)  # the last is of NaN
        unknown = np.full((4, 1), np.nan)
        moved = [np.concatenate((row, unknown), axis=1)[:, columns] for row in self._rows]
        self._rows.clear()
        self._rows.extend(moved)


def inputs(block: Array) -> Array:
    """The inputs of equation 4 for each prediction that a block of iterations allows.

    Args:
        block: (iterations, 4, workers), as `History.latest` gives it.

    Returns:
        (iterations - 2, workers, 8). For the prediction of v^(k+1): v^k, v^(k-1), c^(k+1), c^k, c^(k-1),
        m^(k+1), m^k, m^(k-1), where c^(k+1) was measured at the end of iteration k.
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
    """What a block of iterations teaches.

    Args:
        block: (iterations, 4, workers), as `History.latest` gives it.

    Returns:
        Inputs (samples, workers, 8), the speeds that followed (samples, workers), and the samples' weights
        (samples, workers): 0 where anything is missing (the inputs and the speed are 0, too), else 1.
    """
    given = inputs(block[:-1])
    followed = block[LAGS:, SPEED]
    usable = np.isfinite(given).all(axis=-1) & np.isfinite(followed) & (block[LAGS:, 3] > 0)
    return np.where(usable[..., None], given, 0.0), np.where(usable, followed, 0.0), usable.astype(float)
