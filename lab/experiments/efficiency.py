"""Hardware and statistical efficiency, as LB-BSP measures them (section 5.1), from the curves of runs.

A curve is a list of points in the order of time, each with `seconds` since training began, `updates`
(gradients that went into the parameters) and `accuracy` from 0 to 1.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lab.experiments.analysis import Record

Curve = Sequence[Mapping[str, float]]

MEASURES = ("per_update_s", "updates_to_target", "seconds_to_target")


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
