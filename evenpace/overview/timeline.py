"""Timelines for plots: some of a job's iterations, evenly spaced, the same ones while the job goes on."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from evenpace.overview import thinned_rows
from evenpace.overview.columns import COMMUNICATION, PREDICTED, SIZE, TIME, WAIT
from evenpace.overview.figures import Spread, Timeline, WorkerTimeline
from evenpace.overview.phrases import number
from evenpace.overview.statistics import Array
from idl.measures import computing_time, goodput
from idl.noise import statistical_efficiency

Known = tuple[NDArray[np.int64], Array]


def make(
    rows: Array, points: int, first: float, workers: Mapping[str, Known], first_size: int | None
) -> Timeline:
    """Make a timeline of a job's rows.

    Args:
        rows: All rows of `ThinnedRows`.
        points: Number of iterations at most; at least 1.
        first: First iteration of the timeline.
        workers: By name, the iterations that are known of a worker, (known,) ascending, and its quantities
            in them, (known, QUANTITIES).
        first_size: Samples of a batch whose efficiency is 1; None where they are not known.
    """
    rows = _thin(rows[np.searchsorted(rows[:, thinned_rows.ITERATION], first) :], points)
    numbers = rows[:, thinned_rows.ITERATION].astype(np.int64)
    durations, totals = rows[:, thinned_rows.DURATION], rows[:, thinned_rows.TOTAL]
    throughputs = np.divide(totals, durations, out=np.zeros(len(rows)), where=durations > 0)
    scales = rows[:, thinned_rows.NOISE]
    efficiencies = statistical_efficiency(scales, totals, math.nan if first_size is None else first_size)
    return Timeline(
        iterations=numbers.tolist(),
        durations=durations.tolist(),
        even_durations=_listed(rows[:, thinned_rows.EVEN][:, 1]),
        batch_sizes=_spreads(rows[:, thinned_rows.SIZES]),
        batch_processing_times=_spreads(rows[:, thinned_rows.TIMES]),
        waiting_times=_spreads(rows[:, thinned_rows.WAITS]),
        throughputs=throughputs.tolist(),
        totals=totals.astype(np.int64).tolist(),
        noise_scales=_listed(scales),
        efficiencies=_listed(efficiencies),
        goodputs=_listed(goodput(totals, durations, efficiencies)),
        workers={name: of_worker(numbers, *known) for name, known in workers.items()},
    )


def _thin(rows: Array, points: int) -> Array:
    """Return at most `points` rows: those whose iteration is a multiple of a power of two, and the last."""
    if len(rows) <= points:
        return rows
    numbers = rows[:, thinned_rows.ITERATION].astype(np.int64)
    stride = 2
    while (kept := numbers % stride == 0).sum() > points - 1:
        stride *= 2
    kept[-1] = True
    thinned: Array = rows[kept]
    return thinned


def of_worker(numbers: NDArray[np.int64], known: NDArray[np.int64], quantities: Array) -> WorkerTimeline:
    """Make a worker's timeline at some iterations, (points,), from what is `Known` of it."""
    values = np.full((len(numbers), quantities.shape[1]), np.nan)
    if len(known):
        places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        found = known[places] == numbers
        values[found] = quantities[places[found]]
    sizes, times = values[:, SIZE], values[:, TIME]
    speeds = np.divide(sizes, times, out=np.full(len(values), np.nan), where=(sizes > 0) & (times > 0))
    return WorkerTimeline(
        batch_sizes=_listed(sizes),
        batch_processing_times=_listed(times),
        computing_times=_listed(computing_time(times, values[:, COMMUNICATION])),
        communication_times=_listed(values[:, COMMUNICATION]),
        waiting_times=_listed(values[:, WAIT]),
        speeds=_listed(speeds),
        predicted_speeds=_listed(values[:, PREDICTED]),
    )


def _listed(values: Array) -> list[float | None]:
    return [number(value) for value in values.tolist()]


def _spreads(values: Array) -> list[Spread]:
    return [Spread(number(low), number(middle), number(high)) for low, middle, high in values.tolist()]
