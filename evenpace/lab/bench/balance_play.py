"""A policy played against step times: its splits from noisy measurements, beside the best splits.

The policy runs in a real `batchsize_manager.job.job.Job`, which plans and takes reports as in a manager. The
best split comes from a solver of its own, which shares nothing with the policies'.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies import Policy
from evenpace.lab.bench.config import Change, Noise
from evenpace.lab.bench.step_times import Cluster
from idl.errors import EvenpaceError
from idl.plan import JobSpec
from idl.records import Report
from predictors import Array

CLOSE = 1.05  # ratio to the best split's iteration time up to which a split is close to it
_IN_A_ROW = 3  # iterations in a row that must be close


@dataclass(frozen=True)
class Play:
    """Splits and times of a policy, beside those of the best split.

    Attributes:
        counts: Samples, (iterations, workers).
        times: Seconds that the slowest worker takes, without noise, (iterations,).
        best: The same with the best split, (iterations,).
        noisy: Seconds that the slowest worker takes, with noise, (iterations,).
        noisy_best: The same with the best split and the same noise, (iterations,).
        starts: Iterations in which a part begins: 0, and those of the changes.
    """

    counts: NDArray[np.int64]
    times: Array
    best: Array
    noisy: Array
    noisy_best: Array
    starts: tuple[int, ...]

    def figures(self) -> dict[str, Any]:
        """Return the figures, as `balance` describes a run's, for JSON."""
        ends = (*self.starts[1:], len(self.times))
        return {
            "ratio": _ratio(self.times, self.best),
            "noisy_ratio": _ratio(self.noisy, self.noisy_best),
            "batch_size_changes": int((np.diff(self.counts, axis=0) != 0).any(axis=1).sum()),
            "parts": [
                {
                    "start": start,
                    "best_s": float(self.best[start]),
                    "iterations_to_close": _first_close(self.times[start:end] / self.best[start:end]),
                    "ratio": _ratio(self.times[start:end], self.best[start:end]),
                    "noisy_ratio": _ratio(self.noisy[start:end], self.noisy_best[start:end]),
                }
                for start, end in zip(self.starts, ends, strict=True)
            ],
        }


def _ratio(times: Array, best: Array) -> float:
    return float(times.mean() / best.mean())


def _first_close(ratios: Array) -> int | None:
    """Return the number of iterations before `_IN_A_ROW` close ones; None if there are none."""
    close = np.lib.stride_tricks.sliding_window_view(ratios <= CLOSE, min(_IN_A_ROW, len(ratios))).all(axis=1)
    return int(close.argmax()) if close.any() else None


def best_split(tables: Sequence[Array], minima: Sequence[int], total: int) -> NDArray[np.int64]:
    """Return the split that minimises the longest of the workers' times, exactly, (workers,) samples.

    It is found by the least time in which the workers can process `total` samples.

    Args:
        tables: For each worker, seconds for `minimum`, `minimum` + 1, ... samples, never decreasing.
        minima: Least samples of each worker.
        total: Samples; at least the sum of the minima, at most the sum of the tables' ends.
    """
    candidates = np.unique(np.concatenate(tables))
    candidates = candidates[candidates >= max(table[0] for table in tables)]
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        if _done(tables, minima, float(candidates[middle])).sum() >= total:
            high = middle
        else:
            low = middle + 1
    counts = _done(tables, minima, float(candidates[low]))
    for i in range(len(counts)):  # samples beyond the batch, for which that time is enough, too
        counts[i] -= min(counts.sum() - total, counts[i] - minima[i])
    return counts


def _done(tables: Sequence[Array], minima: Sequence[int], seconds: float) -> NDArray[np.int64]:
    done = [int(np.searchsorted(table, seconds, side="right")) for table in tables]
    return np.array(done, dtype=np.int64) + np.array(minima, dtype=np.int64) - 1


def play(policy: Policy, cluster: Cluster, changes: Sequence[Change], noise: Noise, iterations: int) -> Play:
    """Play a policy against a cluster.

    Raises:
        ValueError: A change is of an unknown worker, or comes after the end.
        EvenpaceError: The job has failed.
    """
    names = list(cluster.workers)
    tables = [times.table() for times in cluster.workers.values()]
    minima = [times.bounds.minimum for times in cluster.workers.values()]
    slowdown = np.ones((iterations, len(names)))
    for change in changes:
        if change.worker not in cluster.workers:
            raise ValueError(f"change of worker {change.worker!r}: there are {', '.join(names)}")
        if change.iteration >= iterations:
            raise ValueError(f"change in iteration {change.iteration}: there are only {iterations}")
        slowdown[change.iteration :, names.index(change.worker)] = change.factor
    factors = noise.factors(iterations, len(names))
    starts = (0, *sorted({change.iteration for change in changes}))
    job = Job(JobSpec(cluster.total * iterations, cluster.total), JobConfig(workers=len(names)), policy)
    for name, times in cluster.workers.items():
        job.join(name, name, times.bounds, 0.0)
    counts = np.zeros((iterations, len(names)), dtype=np.int64)
    true, best = np.zeros((iterations, len(names))), np.zeros((iterations, len(names)))
    now = 0.0
    for k in range(iterations):
        if k in starts:
            slowed = [table * factor for table, factor in zip(tables, slowdown[k], strict=True)]
            ideal = best_split(slowed, minima, cluster.total)
        for i, name in enumerate(names):
            assignment = job.next_assignment(name, name)
            if assignment is None:
                raise EvenpaceError(f"the job has failed: {job.attempts.failure}")
            counts[k, i] = assignment.count
            true[k, i] = slowed[i][assignment.count - minima[i]]
            best[k, i] = slowed[i][ideal[i] - minima[i]]
        measured = true[k] * factors[k]
        now += float(measured.max())
        for i, name in enumerate(names):
            job.report(name, name, Report(k, float(measured[i])), now)
        job.take_effects()
    return Play(
        counts,
        true.max(axis=1),
        best.max(axis=1),
        (true * factors).max(axis=1),
        (best * factors).max(axis=1),
        starts,
    )
