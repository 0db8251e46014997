"""How far transfers are hidden behind computing: definitions over arrays of workers' records.

The model is that of Cannikin, section 3.2: a backward pass of P seconds, whose first bucket of gradients is
ready after γP of them. All buckets but the last are transferred in T_o seconds, the last one in T_u. An
iteration of a worker ends max(P + T_u, γP + T_o + T_u) after its backward pass began: P + T_o + T_u, less the
transfers that are *hidden*, min(T_o, P - γP). All others are *exposed*.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from evenpace.overview.statistics import Array, median

_TIMES = ("batch_processing_time", "waiting_time", "communication_time")
_BUCKETS = ("backward_time", "first_bucket_time", "other_buckets_time", "last_bucket_time")
_HALF = 0.5


class Transfers(NamedTuple):
    """Transfers of workers, (..., workers), or (workers,) of typical ones; NaN where they are not known.

    Attributes:
        communication_bound: 1 where communication is the bottleneck: the first bucket and the others but the
            last take longer than the backward pass; 0 where computing is.
    """

    hidden_share: Array  # share of the transfers' time that is hidden behind computing, 0 to 1
    exposed_share: Array  # share of an iteration that exposed transfers take, 0 to 1
    communication_bound: Array


@np.errstate(divide="ignore", invalid="ignore")
def transfers(column: Callable[[str], Array]) -> Transfers:
    """Return the transfers of workers in iterations.

    By a parameter server, where `communication_time` is known, that is the time of exposed transfers, and the
    times of buckets are a worker's own. Without these, what is hidden is not known, and communication counts
    as the bottleneck where it takes more than half of the batch processing time. With an all-reduce, T_o and
    T_u are the least that any worker has measured in the iteration, since the others' contain their waiting
    for the last one to be ready.

    Args:
        column: Returns the values of a field of `WorkerRecord`, (..., workers), as `IterationRecord.column`
            does; NaN where a worker took no part.
    """
    processing, waiting, communication = map(column, _TIMES)
    backward, first, others, last = map(column, _BUCKETS)
    by_all_reduce = np.isnan(communication)
    others, last = (np.where(by_all_reduce, _least(one, by_all_reduce), one) for one in (others, last))
    hidden = np.maximum(np.minimum(others, backward - first), 0.0)
    overlapped = np.isfinite(hidden)
    bound = np.where(overlapped, first + others > backward, communication > _HALF * processing)
    exposed = np.where(by_all_reduce, others + last - hidden, communication)
    return Transfers(
        hidden / (hidden + exposed),
        np.minimum(exposed / (processing + waiting), 1.0),
        np.where(np.isfinite(exposed), bound, np.nan),
    )


def typical(many: Transfers) -> Transfers:
    """Return the medians over the rows, (rows, columns) to (columns,), leaving out NaN.

    Communication is the bottleneck of a column where it is in most of the rows.
    """
    hidden, exposed, bound = map(median, many)
    return Transfers(hidden, exposed, np.where(np.isnan(bound), np.nan, bound > _HALF))


def bottleneck(communication_bound: float) -> str | None:
    """Return the name of a worker's bottleneck, from `Transfers`; None where it is not known."""
    if np.isnan(communication_bound):
        return None
    return "communication" if communication_bound else "computing"


def _least(values: Array, counted: Array) -> Array:
    """Return the least of those values of all workers that are known and `counted`, (..., 1)."""
    known = np.where(counted, values, np.nan)
    least: Array = np.fmin.reduce(known, axis=-1, keepdims=True, initial=np.nan)
    return least
