"""Figures of a run's records: iteration times, the oracle's, waiting, the error of predictions.

Records are as `IterationRecord.plain` gives them; times are in seconds, speeds in samples/s.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.solver import split
from idl import measures
from idl.bounds import Bounds

Record = Mapping[str, Any]
Array = NDArray[np.float64]


def speed(part: Mapping[str, Any]) -> float:
    """Return a worker's sample-processing speed in an iteration; NaN where it had no sample."""
    if not part["batch_size"]:
        return math.nan
    return float(part["batch_size"] / part["batch_processing_time"])


def durations(records: Sequence[Record]) -> Array:
    """Return the duration of each iteration, (iterations,)."""
    return np.array([record["duration"] for record in records])


def oracle_times(records: Sequence[Record]) -> Array:
    """Return the least duration that each iteration could have had, (iterations,).

    The oracle knows the speeds that the workers were going to show in that iteration, splits the batch so
    that the slowest is as quick as can be, and costs nothing itself. Where a worker had no sample, its speed
    is not known, and the iteration is NaN.
    """
    times = []
    for record in records:
        speeds = [speed(part) for part in record["workers"].values()]
        if any(math.isnan(value) for value in speeds):
            times.append(math.nan)
            continue
        counts = split(speeds, record["total"], [Bounds()] * len(speeds))
        times.append(max(count / value for count, value in zip(counts, speeds, strict=True)))
    return np.array(times)


def waiting_share(records: Sequence[Record]) -> float:
    """Return the waiting share over all workers, as `idl.measures` defines it."""
    parts = [part for record in records for part in record["workers"].values()]
    waiting = sum(part["waiting_time"] for part in parts)
    return float(measures.waiting_share(waiting, sum(part["batch_processing_time"] for part in parts)))


def prediction_errors(records: Sequence[Record]) -> dict[str, tuple[float, float]]:
    """Return for each worker the RMSE of its predicted speeds and its mean speed, both in samples/s.

    Only iterations with a prediction and a speed count; a worker without any is left out.
    """
    errors: dict[str, list[float]] = defaultdict(list)
    speeds: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for worker, part in record["workers"].items():
            measured, predicted = speed(part), part["predicted_speed"]
            if predicted is not None and not math.isnan(measured):
                errors[worker].append(predicted - measured)
                speeds[worker].append(measured)
    return {
        worker: (float(np.sqrt(np.mean(np.square(values)))), float(np.mean(speeds[worker])))
        for worker, values in errors.items()
    }


def relative_rmse(records: Sequence[Record]) -> float | None:
    """Return the root mean square over workers of their prediction errors relative to their mean speeds."""
    errors = prediction_errors(records)
    if not errors:
        return None
    return float(np.sqrt(np.mean([(rmse / mean) ** 2 for rmse, mean in errors.values()])))


def reach(curve: Sequence[Mapping[str, float]], target: float) -> Mapping[str, float] | None:
    """Return the first point of a curve of evaluations whose accuracy is at least `target`, or None."""
    return next((point for point in curve if point["accuracy"] >= target), None)
