"""Equilibrium of workers' batch processing times, and the effect of a cut bandwidth, from a run's records.

The equilibrium is what LB-BSP's Figure 8 shows: all workers take about the same time (section 5.2). Single
iterations are noisy, so times are medians over a window of iterations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.experiments.analysis import Record

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Trajectory:
    """Batch sizes and times, iteration by iteration."""

    workers: tuple[str, ...]  # names of the workers
    iterations: NDArray[np.int64]  # iteration numbers, (iterations,)
    batch_sizes: Array  # batch sizes in samples, (iterations, workers)
    times: Array  # batch processing times in seconds, (iterations, workers)

    def part(self, first: int, last: int | None = None) -> "Trajectory":
        """Return the part from iteration `first` to before iteration `last`, or to the end."""
        kept = self.iterations >= first
        if last is not None:
            kept &= self.iterations < last
        return Trajectory(self.workers, self.iterations[kept], self.batch_sizes[kept], self.times[kept])


@dataclass(frozen=True)
class Phase:
    """Batch sizes and times of workers at the end of a part of a run, and when they became equal."""

    # Iterations from the phase's start until all took about the same time; None if they never did.
    reached: int | None
    batch_sizes: dict[str, float]  # by worker: the median over the last window, samples
    times: dict[str, float]  # by worker: the median batch processing time over the last window, seconds
    imbalance: float  # the longest of these times, as a multiple of their mean


def trajectory(records: Sequence[Record], total: int) -> Trajectory:
    """Return the trajectory of iterations with whole batches of `total` samples (ValueError: none).

    An epoch's last, smaller batch is left out: its times are of another size.
    """
    whole = [record for record in records if record["total"] == total]
    if not whole:
        raise ValueError(f"no iteration has a batch of {total} samples")
    workers = tuple(sorted(whole[0]["workers"]))
    kept = [record for record in whole if tuple(sorted(record["workers"])) == workers]

    def column(key: str) -> Array:
        return np.array([[r["workers"][name][key] for name in workers] for r in kept], dtype=float)

    numbers = np.array([record["iteration"] for record in kept], dtype=np.int64)
    return Trajectory(workers, numbers, column("batch_size"), column("batch_processing_time"))


def imbalance(times: Array) -> float:
    """Return the longest of the workers' median times, (iterations, workers), as a multiple of their mean."""
    medians = np.median(times, axis=0)
    return float(medians.max() / medians.mean())


def phase(part: Trajectory, window: int, tolerance: float) -> Phase:
    """Describe a part of a run in which nothing else changed, by medians over a window of iterations.

    The tolerance is the imbalance beyond 1 that counts as "about the same time".
    """
    if window < 1 or tolerance < 0:
        raise ValueError(f"window {window}, tolerance {tolerance}: must be at least 1 and 0")
    if not len(part.iterations):
        raise ValueError("a phase needs at least one iteration")
    reached = None
    for end in range(window, len(part.iterations) + 1):
        if imbalance(part.times[end - window : end]) <= 1 + tolerance:
            reached = int(part.iterations[end - 1] - part.iterations[0]) + 1
            break
    sizes = np.median(part.batch_sizes[-window:], axis=0)
    times = np.median(part.times[-window:], axis=0)
    return Phase(
        reached,
        dict(zip(part.workers, sizes.tolist(), strict=True)),
        dict(zip(part.workers, times.tolist(), strict=True)),
        imbalance(part.times[-window:]),
    )


def slowdown(before: Trajectory, after: Trajectory, worker: str, window: int) -> float:
    """Return the ratio of a worker's median time right after a change to that right before it.

    The window is the number of iterations on each side that medians are over.
    """
    if worker not in before.workers:
        raise ValueError(f"no worker {worker!r}; there are {', '.join(before.workers)}")
    if not len(before.times) or not len(after.times):
        raise ValueError("a change needs an iteration before and after it")
    column = before.workers.index(worker)
    return float(np.median(after.times[:window, column]) / np.median(before.times[-window:, column]))
