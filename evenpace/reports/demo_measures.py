"""Figures of a run in the demo's report, computed from its iterations; see `demo` for their form."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from evenpace.reports import numbers
from idl import measures


def waiting_share(run: Mapping[str, Any], worker: str) -> float:
    """Return a worker's waiting share in a run; see `idl.measures`."""
    waiting, processing = (
        sum(value for value in series(run, worker, quantity) if math.isfinite(value))
        for quantity in ("waiting_time", "batch_processing_time")
    )
    return float(measures.waiting_share(waiting, processing))


def median_time(run: Mapping[str, Any], worker: str) -> float:
    """Return the median batch processing time of a worker in seconds; NaN without any."""
    times = [x for x in series(run, worker, "batch_processing_time") if math.isfinite(x)]
    return statistics.median(times) if times else math.nan


def ratio(parts: list[float], wholes: list[float]) -> float:
    """Return the ratio of sums over the iterations that have both values; NaN without any."""
    pairs = [pair for pair in zip(parts, wholes, strict=True) if all(map(math.isfinite, pair))]
    whole = sum(whole for _, whole in pairs)
    return sum(part for part, _ in pairs) / whole if whole else math.nan


def series(run: Mapping[str, Any], worker: str, quantity: str) -> list[float]:
    """Return a quantity of a worker in each iteration; NaN where it took no part."""
    return [
        numbers.number(iteration["workers"].get(worker, {}).get(quantity)) for iteration in run["iterations"]
    ]


def iteration_numbers(run: Mapping[str, Any]) -> list[float]:
    """Return the iterations' numbers, for the x axis."""
    return [iteration["iteration"] for iteration in run["iterations"]]
