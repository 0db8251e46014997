"""A policy played against step times: its splits from noisy measurements, beside the best splits.

The policy runs in a real `batchsize_manager.job.job.Job`, which plans and takes reports as in a manager. The
best split comes from a solver of its own, which shares nothing with the policies'.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies import Policy
from idl.bounds import Bounds
from idl.errors import EvenpaceError
from idl.plan import JobSpec
from idl.records import Report
from lab.bench.step_times import Cluster
from predictors import Array


@dataclass(frozen=True)
class Change:
    """Change of a worker's speed: from an iteration on, its times are `factor` times the measured ones."""

    iteration: int
    worker: str
    factor: float

    def __post_init__(self) -> None:
        if self.iteration < 1:
            raise ValueError(f"change in iteration {self.iteration}: must be at least 1")
        if not 0 < self.factor < float("inf"):
            raise ValueError(f"change by the factor {self.factor}: must be above 0")


@dataclass(frozen=True)
class Noise:
    """Noise on the true times, from which the measured ones follow."""

    deviation: float = 0.03  # relative standard deviation of a time
    seed: int = 0

    def factors(self, iterations: int, workers: int) -> Array:
        """Return factors on the true times, (iterations, workers); the same for every policy."""
        random = np.random.default_rng(self.seed)
        factors: Array = np.maximum(0.1, random.normal(1.0, self.deviation, (iterations, workers)))
        return factors


CLOSE = 1.05  # ratio to the best split's iteration time up to which a split is close to it
NEAR = 1.03  # likewise, for the number of splits until one is near the best
_IN_A_ROW = 3  # iterations in a row that must be close
_LATE = 20  # iterations, whose time beside the processing is taken for that of others
_TRANSFERS = 1_000_000  # added to the seed, for the noise of transfers
_OTHER_TOTALS = (0.75, 0.9, 1.1, 1.25)  # of the batch, for which the times of the best splits are predicted


class Transfers(Protocol):
    """How workers' gradients meet, and how long that takes, such as `AllReduce` and `ServerLinks`."""

    @property
    def noises(self) -> int:
        """The number of factors that `iterate` takes."""
        ...

    def table(self, worker: int, table: Array, passes: NDArray[np.int64] | int = 1) -> Array:
        """Return the seconds of an iteration by a worker's batch, from those that it computes for.

        Args:
            table: Seconds that it computes for, by batch size; (sizes,).
            passes: Micro-batches of each batch size, (sizes,); 1 in a job without.
        """
        ...

    def iterate(
        self, computing: Array, factors: Array, passes: NDArray[np.int64] | int = 1
    ) -> tuple[float, list[dict[str, float]]]:
        """Return the seconds of an iteration, and what each worker measures, by fields of `Report`.

        Args:
            computing: Seconds that each worker computes for, (workers,); its batch processing time, unless
                it measures another.
            factors: Factors on the seconds of transfers, (noises,).
            passes: Micro-batches of each worker, (workers,); 1 in a job without.
        """
        ...


@dataclass(frozen=True)
class Play:
    """Splits and times of a policy, beside those of the best split."""

    # Samples, or micro-batches where the cluster's batches are in these; (iterations, workers).
    counts: NDArray[np.int64]
    times: Array  # seconds that the slowest worker takes, without noise, (iterations,)
    best: Array  # the same with the best split, (iterations,)
    noisy: Array  # seconds that the slowest worker takes, with noise, (iterations,)
    noisy_best: Array  # the same with the best split and the same noise, (iterations,)
    starts: tuple[int, ...]  # iterations in which a part begins: 0, and those of the changes
    # The largest relative error of the seconds that the policy predicts, in the end, for other batches with
    # their best splits; None where it predicts none.
    prediction_error: float | None = None

    def figures(self) -> dict[str, Any]:
        """Return the figures, as `balance` describes a run's, for JSON."""
        ends = (*self.starts[1:], len(self.times))
        return {
            "ratio": _ratio(self.times, self.best),
            "noisy_ratio": _ratio(self.noisy, self.noisy_best),
            "batch_size_changes": int(_changed(self.counts).sum()),
            "prediction_error": self.prediction_error,
            "parts": [
                {
                    "start": start,
                    "best_s": float(self.best[start]),
                    "iterations_to_close": _first_close(self.times[start:end] / self.best[start:end]),
                    "splits_to_near": _splits_to_near(
                        self.counts[start:end], self.times[start:end] / self.best[start:end]
                    ),
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


def _changed(counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each split but the first differs from the one before, (iterations - 1,)."""
    return np.asarray((np.diff(counts, axis=0) != 0).any(axis=1))


def _splits_to_near(counts: NDArray[np.int64], ratios: Array) -> int | None:
    """Return the number of splits before the first one near the best; None if there is none."""
    near = ratios <= NEAR
    return int(_changed(counts)[: near.argmax()].sum()) if near.any() else None


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


def play(
    policy: Policy,
    cluster: Cluster,
    changes: Sequence[Change],
    noise: Noise,
    iterations: int,
    transfers: Transfers | None = None,
    micro_batch: int | None = None,
) -> Play:
    """Play a policy against a cluster, whose batches are in micro-batches of `micro_batch` samples, if given.

    Without `transfers`, those of gradients take no time.
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
    of_transfers = replace(noise, seed=noise.seed + _TRANSFERS).factors(
        iterations, transfers.noises if transfers else 1
    )
    starts = (0, *sorted({change.iteration for change in changes}))

    def passes(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return sizes if micro_batch else np.ones_like(sizes)

    unit = micro_batch or 1
    samples = cluster.total * unit
    spec = JobSpec(samples * iterations, samples, micro_batch=micro_batch)
    job = Job(spec, JobConfig(workers=len(names)), policy)
    for name, times in cluster.workers.items():
        job.join(name, name, Bounds(times.bounds.minimum * unit, times.bounds.maximum * unit), 0.0)
    counts = np.zeros((iterations, len(names)), dtype=np.int64)
    true, best = np.zeros((iterations, len(names))), np.zeros((iterations, len(names)))
    noisy, noisy_best, beside = np.zeros(iterations), np.zeros(iterations), np.zeros(iterations)
    now = 0.0
    for k in range(iterations):
        if k in starts:
            slowed = [table * factor for table, factor in zip(tables, slowdown[k], strict=True)]
            whole = [
                transfers.table(i, its, passes(minima[i] + np.arange(len(its)))) if transfers else its
                for i, its in enumerate(slowed)
            ]
            ideal = best_split(whole, minima, cluster.total)
        for i, name in enumerate(names):
            assignment = job.next_assignment(name, name)
            if assignment is None:
                raise EvenpaceError(f"the job has failed: {job.attempts.failure}")
            counts[k, i] = assignment.count // unit
        places, best_places = counts[k] - minima, ideal - minima
        true[k], best[k] = _at(whole, places), _at(whole, best_places)
        measured = _at(slowed, places) * factors[k]
        noisy[k], reports = _iterate(k, measured, transfers, of_transfers[k], passes(counts[k]))
        noisy_best[k], _ = _iterate(
            k, _at(slowed, best_places) * factors[k], transfers, of_transfers[k], passes(ideal)
        )
        beside[k] = noisy[k] - max(report.batch_processing_time for report in reports)
        now += noisy[k]
        for name, report in zip(names, reports, strict=True):
            job.report(name, name, report, now)
        job.take_effects()
    return Play(
        counts,
        true.max(axis=1),
        best.max(axis=1),
        noisy,
        noisy_best,
        starts,
        _prediction_error(policy, whole, minima, cluster.total, float(np.median(beside[-_LATE:]))),
    )


def _at(tables: Sequence[Array], places: NDArray[np.int64]) -> Array:
    return np.array([table[place] for table, place in zip(tables, places.tolist(), strict=True)])


def _iterate(
    iteration: int, computing: Array, transfers: Transfers | None, factors: Array, passes: NDArray[np.int64]
) -> tuple[float, list[Report]]:
    """Return the seconds of an iteration, and the workers' reports of it."""
    seconds = computing.tolist()
    took, more = (
        transfers.iterate(computing, factors, passes) if transfers else (max(seconds), [{}] * len(seconds))
    )
    reports = [
        Report(**{"iteration": iteration, "batch_processing_time": its, **measured})
        for its, measured in zip(seconds, more, strict=True)
    ]
    return took, reports


def _prediction_error(
    policy: Policy, tables: Sequence[Array], minima: Sequence[int], total: int, beside: float
) -> float | None:
    """Return the largest relative error of the iterations' times that a policy predicts for other batches.

    An iteration takes `beside` seconds beside the longest batch processing time, as job sizers take it to be.
    """
    most = sum(len(table) - 1 + minimum for table, minimum in zip(tables, minima, strict=True))
    totals = [round(factor * total) for factor in _OTHER_TOTALS]
    totals = [each for each in totals if sum(minima) <= each <= most]
    predicted = policy.seconds(totals)
    if not predicted:
        return None
    true = [_at(tables, best_split(tables, minima, each) - minima).max() for each in totals]
    return float(max(abs((one + beside) / its - 1) for one, its in zip(predicted, true, strict=True)))
