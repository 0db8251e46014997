"""Figures of a run: iteration times, the oracle's, waiting, the error of predictions, and efficiency.

Records are as `IterationRecord.plain` gives them; times are in seconds, speeds in samples/s. A curve is a
list of points in the order of time, each with `seconds` since training began, `updates` (gradients that went
into the parameters) and `accuracy` from 0 to 1; its figures are hardware and statistical efficiency, as
LB-BSP measures them (section 5.1).
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.solver import split
from idl import measures
from idl.bounds import Bounds

Record = Mapping[str, Any]
Curve = Sequence[Mapping[str, float]]
Array = NDArray[np.float64]

MEASURES = ("per_update_s", "updates_to_target", "seconds_to_target")


def speed(part: Mapping[str, Any]) -> float:
    """Return a worker's sample-processing speed in an iteration; NaN where it had no sample."""
    if not part["batch_size"]:
        return math.nan
    return float(part["batch_size"] / part["batch_processing_time"])


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


def reach(curve: Curve, target: float) -> Mapping[str, float] | None:
    """Return the first point of a curve of evaluations whose accuracy is at least `target`, or None."""
    return next((point for point in curve if point["accuracy"] >= target), None)


def per_update_seconds(
    records: Sequence[Record], curve: Curve, workers: int, synchronous: bool, settle: int
) -> float:
    """Return the mean time in which the parameter server receives one gradient, in seconds.

    For synchronous schemes it is the mean iteration time divided by the workers' number; else the time
    between two updates, over all workers. The first `settle` iterations, or as many updates as they have, are
    left out (ValueError: nothing is left).
    """
    if synchronous:
        durations = [record["duration"] for record in records[settle:]]
        if not durations:
            raise ValueError(f"settle {settle}: leaves nothing of {len(records)} iterations")
        return statistics.fmean(durations) / workers
    begun = [point for point in curve if point["updates"] <= settle * workers]
    first, last = begun[-1] if begun else curve[0], curve[-1]
    if last["updates"] <= first["updates"]:
        raise ValueError(f"settle {settle}: leaves no updates of {last['updates']:.0f}")
    return (last["seconds"] - first["seconds"]) / (last["updates"] - first["updates"])


def crossing(curve: Curve, target: float) -> tuple[float, float] | None:
    """Return updates and seconds at which a curve first reaches an accuracy, or None if it never does.

    Between the first point that is good enough and the one before it, accuracy is taken to grow evenly.
    """
    before: Mapping[str, float] | None = None
    for point in curve:
        if point["accuracy"] >= target:
            if before is None:
                return point["updates"], point["seconds"]
            part = (target - before["accuracy"]) / (point["accuracy"] - before["accuracy"])
            updates = before["updates"] + part * (point["updates"] - before["updates"])
            return updates, before["seconds"] + part * (point["seconds"] - before["seconds"])
        before = point
    return None


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the mean of each of `MEASURES` over runs with different seeds; None if one run lacks it.

    A mean over only those runs that reached the target would favour a scheme that fails now and then.
    """
    means: dict[str, float | None] = {}
    for measure in MEASURES:
        values = [run[measure] for run in runs]
        means[measure] = None if None in values or not values else statistics.fmean(values)
    return means


def relative(
    schemes: Mapping[str, Mapping[str, float | None]], baseline: str
) -> dict[str, dict[str, float | None]]:
    """Return each scheme's means as a share of the baseline's; None where one of them is missing."""
    base = schemes[baseline]
    return {
        name: {measure: _ratio(means[measure], base[measure]) for measure in MEASURES}
        for name, means in schemes.items()
    }


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
