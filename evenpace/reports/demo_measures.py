"""What the demo's report says of a run, worked out from its iterations; see `demo` for their form."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from evenpace.reports import numbers
from idl import measures


def waiting_share(run: Mapping[str, Any], worker: str) -> float:
    """That of a worker; see `idl.measures`."""
    waiting, processing = (
        sum(value for value in series(run, worker, quantity) if math.isfinite(value))
        for quantity in ("waiting_time", "batch_processing_time")
    )
    return float(measures.waiting_share(waiting, processing))


def median_time(run: Mapping[str, Any], worker: str) -> float:
    """Of the batch processing times; NaN if there are none."""
    times = [x for x in series(run, worker, "batch_processing_time") if math.isfinite(x)]
    return statistics.median(times) if times else math.nan


def ratio(parts: list[float], wholes: list[float]) -> float:
    """Sum by sum, over the iterations that have both; NaN where there is nothing to divide by."""
    pairs = [pair for pair in zip(parts, wholes, strict=True) if all(map(math.isfinite, pair))]
    whole = sum(whole for _, whole in pairs)
    return sum(part for part, _ in pairs) / whole if whole else math.nan


def series(run: Mapping[str, Any], worker: str, quantity: str) -> list[float]:
    """One number per iteration; NaN where the worker took no part."""
    return [
        numbers.number(iteration["workers"].get(worker, {}).get(quantity)) for iteration in run["iterations"]
    ]


def iteration_numbers(run: Mapping[str, Any]) -> list[float]:
    """For the x axis."""
    return [iteration["iteration"] for iteration in run["iterations"]]
